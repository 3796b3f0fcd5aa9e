"""What good clients and attackers of a siege do, as the source of programs: see `attacker` for what these can use."""

from collections.abc import Mapping
from typing import Final

from tests.hostile import vault_attacks

GOOD_CLIENTS: Final = 50

_CLIENT: Final = """
def client():
    sock = connect()
    introduce(sock, 2)
    _, fds, _, _ = socket.recv_fds(sock, 64, 4)
    sock.send(struct.pack("<i", 0))
    return sock, fds
"""

GOOD: Final = (
    _CLIENT
    + f"""
for number in range({GOOD_CLIENTS}):
    if not os.fork():
        # Not all at the same moment.
        time.sleep(number / {GOOD_CLIENTS})
        while True:
            began = time.monotonic()
            try:
                sock, fds = client()
            except OSError as error:
                tell("refused", why=str(error))
                time.sleep(0.2)
                continue
            tell("served" if fds else "refused", ms=(time.monotonic() - began) * 1000)
            for fd in fds:
                os.close(fd)
            sock.close()
            time.sleep(random.uniform(0.5, 1.5))
tell("started")
signal.pause()
"""
)
"""Each comes once a second: connects, is given its lane, is a client for a moment, and goes in order."""

ATTACKS: Final[Mapping[str, str]] = {
    "lingering sockets": """
def lingering():
    listener = socket.create_server(("127.0.0.1", 0))
    sock = socket.create_connection(listener.getsockname())
    other, _ = listener.accept()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    sock.setblocking(False)
    try:
        while True:
            sock.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    return sock, other

trap, other = lingering()
while True:
    for number in range(8):
        try:
            sock = connect()
            if number % 2:
                sock.send(b"garbage")
            socket.send_fds(sock, [b"OUTBCRED\\0"], [trap.fileno()] * 3)
        except OSError:
            pass
        sock.close()
    time.sleep(0.2)
""",
    "crashes": _CLIENT
    + """
while True:
    pid = os.fork()
    if not pid:
        files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)]
        try:
            kept = client()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    time.sleep(0.09)
""",
    "programs executed by clients": _CLIENT
    + """
while True:
    pid = os.fork()
    if not pid:
        try:
            files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)]
            sock, fds = client()
            os.set_inheritable(sock.fileno(), True)
            os.execv("/bin/sleep", ["sleep", "0.2"])
        finally:
            os._exit(1)
    os.waitpid(pid, 0)
""",
    "command lines that flood": """
while True:
    kept = []
    for _ in range(200):
        try:
            kept.append(connect())
            introduce(kept[-1], 4)
            command(kept[-1], "get_default_client_priority")
        except OSError:
            pass
    time.sleep(0.5)
    for sock in kept:
        sock.close()
""",
    "command lines that idle": """
while True:
    kept = []
    for _ in range(900):
        try:
            kept.append(connect())
            introduce(kept[-1], 4)
        except OSError:
            pass
    time.sleep(5)
    for sock in kept:
        sock.close()
""",
    "peers that say nothing": """
while True:
    kept = []
    for _ in range(900):
        try:
            kept.append(connect())
        except OSError:
            pass
    time.sleep(1)
    for sock in kept:
        sock.close()
""",
    "nonsense": """
while True:
    sock = connect()
    try:
        sock.recv(64)
        for _ in range(random.randrange(1, 4)):
            sock.send(random.randbytes(random.choice((1, 4, 9, 64, 4096))))
    except OSError:
        pass
    sock.close()
    time.sleep(0.005)
""",
    "the public lock": """
lock = os.open(os.path.join(PUBLIC, "control_lock"), os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX)
signal.pause()
""",
    "core files": """
number = 0
os.makedirs(sys.argv[2], exist_ok=True)
while True:
    for _ in range(20):
        number += 1
        path = os.path.join(sys.argv[2], f"core.{os.getpid()}{number % 1000:03}")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            continue
        os.write(file, b"\\x7fELF\\x02\\x01\\x01" + bytes(57))
        os.ftruncate(file, 200 << 20)
        os.close(file)
    time.sleep(0.1)
    for name in os.listdir(sys.argv[2]) if os.access(sys.argv[2], os.R_OK) else ():
        try:
            os.unlink(os.path.join(sys.argv[2], name))
        except OSError:
            pass
""",
    "zone tables and decoys": _CLIENT
    + """
while True:
    pid = os.fork()
    if not pid:
        tables = [os.memfd_create("mpsguard-zones") for _ in range(64)]
        for table in tables:
            os.ftruncate(table, 1 << 24)
            os.pwrite(table, os.urandom(4096), 0)
        files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND) for _ in range(64)]
        try:
            kept = client()
            time.sleep(0.5)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
""",
    "a locked memory map": """
libc = ctypes.CDLL(None)
PR_SET_DUMPABLE = 4
libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
file = open(sys.argv[3], "rb")
page = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
memory = os.open("/proc/self/mem", os.O_RDONLY)
sock = connect()
kind = struct.pack("<i", 2)
sock.recv(64)

def write():
    time.sleep(0.5)
    libc.munmap(ctypes.c_void_p(1 << 40), 4096)

threading.Thread(target=write, daemon=True).start()
threading.Thread(target=os.pread, args=(memory, 1, address), daemon=True).start()
time.sleep(1)
sock.send(b"OUTBCRED\\0")
sock.send(kind)
signal.pause()
""",
    "the vault": f"""
while True:
    for name in {
        [
            each.__name__
            for each in (
                vault_attacks.at_the_greeting,
                vault_attacks.before_anything_is_accepted,
                vault_attacks.beyond_the_limit,
                vault_attacks.as_chunks,
                vault_attacks.more_than_agreed_and_gone,
                vault_attacks.in_the_middle,
                vault_attacks.take_all_there_is,
            )
        ]
    }:
        pid = os.fork()
        if not pid:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(1, 2)
            signal.alarm(3)
            vault_attacks.main(name, sys.argv[4], os.getuid())
        os.waitpid(pid, 0)
""",
}
"""Each goes on until it is killed. The program's arguments: the public directory, the directory of core dumps, a file
with a page that never comes, the vault's socket."""

IMPORTS: Final = "import random\nfrom tests.hostile import vault_attacks\n"
"""Before the user changes: the interpreter may lie where that user cannot read."""
