"""What good clients and attackers of a siege do, as the source of programs: see `attacker` for what these can use."""

from collections.abc import Mapping
from typing import Final

from tests.hostile import vault_attacks

GOOD_CLIENTS: Final = 50

_CROWD: Final = """
def crowd(count, seconds, say=lambda sock: None):
    kept = []
    for _ in range(count):
        try:
            kept.append(connect())
            say(kept[-1])
        except OSError:
            pass
    time.sleep(seconds)
    for sock in kept:
        sock.close()
"""
"""So many connections at once, held for a while."""

_CHILD: Final = """
def in_a_child(work):
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
"""

_CLIENTS: Final = """
def clients():
    while True:
        try:
            sock, fds = client()
        except OSError:
            time.sleep(0.1)
            continue
        yield sock
        for fd in fds:
            os.close(fd)
        sock.close()
"""
"""One client after the other, each until the next one is asked for."""

GOOD: Final = f"""
def waits():
    with open("/proc/self/schedstat") as file:
        return int(file.read().split()[1]) / 1e6

for number in range({GOOD_CLIENTS}):
    if not os.fork():
        # Not all at the same moment.
        time.sleep(number / {GOOD_CLIENTS})
        while True:
            began, waited = time.monotonic(), waits()
            try:
                sock, fds = client()
            except OSError as error:
                tell("refused", why=str(error))
                time.sleep(0.2)
                continue
            tell("served" if fds else "refused", ms=(time.monotonic() - began) * 1000, waited=waits() - waited)
            for fd in fds:
                os.close(fd)
            sock.close()
            time.sleep(random.uniform(0.5, 1.5))
tell("started")
signal.pause()
"""
"""Each comes once a second: connects, is given its lane, is a client for a moment, and goes in order. It tells how long
that took, and how long of that it waited for a processor itself: milliseconds."""

HELD_LOCKS: Final = """
libc = ctypes.CDLL(None, use_errno=True)
stalled = os.open(sys.argv[2], os.O_RDONLY)
page = mmap.mmap(stalled, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
SYS_getdents64 = 217

def held(path):
    try:
        mode = os.stat(path).st_mode
        if mode & 0o170000 == 0o040000:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            call = lambda: libc.syscall(SYS_getdents64, fd, address, 4096)
        else:
            # A FIFO too: it has a reader then.
            fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)
            call = lambda: libc.write(fd, address, 4096)
    except OSError as error:
        return type(error).__name__
    threading.Thread(target=call, daemon=True).start()
    return "held"
"""
"""It takes the lock of a file, FIFO or directory for good, where it can: a call of its own copies from or to the page
that never comes."""

LOCKED_MEMORY_MAP: Final = """
libc = ctypes.CDLL(None)
# A program that has not changed its user is so from the start.
PR_SET_DUMPABLE = 4
libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)
file = open(sys.argv[2], "rb")
page = mmap.mmap(file.fileno(), 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
address = ctypes.addressof(ctypes.c_char.from_buffer(page))
memory = os.open("/proc/self/mem", os.O_RDONLY)
sock = connect()
kind = struct.pack("<i", 2)
sock.recv(64)

def write():
    time.sleep(0.5)
    libc.munmap(ctypes.c_void_p(1 << 40), 4096)

# The second holds the lock while its page does not come; the first then wants it alone, so that no reader passes it.
# Both are made before: from then on nothing here can be mapped.
threading.Thread(target=write, daemon=True).start()
threading.Thread(target=os.pread, args=(memory, 1, address), daemon=True).start()
time.sleep(1)
sock.send(b"OUTBCRED\\0")
sock.send(kind)
signal.pause()
"""
"""A client that holds its own memory-map lock: the program's second argument is a file with a page that never comes."""

HELD_DESCRIPTORS: Final = (
    _CLIENTS
    + """
signal.signal(signal.SIGIO, signal.SIG_IGN)
libc = ctypes.CDLL(None)
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE
file = os.open(sys.argv[2], os.O_RDONLY)
page = mmap.mmap(file, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
poll = select.epoll()
poll.register(os.eventfd(1), select.EPOLLIN)
threading.Thread(target=libc.epoll_wait, args=(poll.fileno(), address, 1, -1), daemon=True).start()
table = os.memfd_create("mpsguard-zones")
leased = os.open(f"/proc/self/fd/{table}", os.O_RDWR)
fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
place = os.open(sys.argv[2], os.O_PATH)

def exchange():
    while True:
        for _ in range(50):
            os.dup2(place, 200)
            os.dup2(poll.fileno(), 200)
        time.sleep(0.002)

threading.Thread(target=exchange, daemon=True).start()
# Each client is looked at anew.
for sock in clients():
    time.sleep(0.3)
"""
)
"""A client with a leased memory file that has a zone table's name, and an epoll of which it holds the
lock, exchanged all the time with the file that never answers: the second argument."""

HELD_EXEC: Final = """
# Few: one that waits so cannot be killed before the file system is gone.
for number in range(24):
    if not os.fork():
        try:
            if number % 2:
                sock, fds = client()
            else:
                sock = connect()
                sock.recv(64)
                sock.send(b"OUTBCRED\\0")
                sock.send(struct.pack("<i", 2))
            os.set_inheritable(sock.detach(), True)
            file = os.open(sys.argv[5], os.O_RDONLY)
            os.execv("/bin/sleep", ["sleep", "600"])
        finally:
            os._exit(1)
    time.sleep(0.25)
signal.pause()
"""
"""Clients that never end an execve(2), some in the handshake: the fifth argument is a file with a close that never
returns."""

ATTACKS: Final[Mapping[str, str]] = {
    "lingering sockets": """
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
    "packets without end": _CLIENTS
    + """
# Without a copy of each packet: the kernel is asked to send a thousand at once.
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
class msghdr(ctypes.Structure):
    _fields_ = [("name", ctypes.c_void_p), ("namelen", ctypes.c_uint32), ("iov", ctypes.POINTER(iovec)),
                ("iovlen", ctypes.c_size_t), ("control", ctypes.c_void_p), ("controllen", ctypes.c_size_t),
                ("flags", ctypes.c_int)]
class mmsghdr(ctypes.Structure):
    _fields_ = [("header", msghdr), ("length", ctypes.c_uint)]
word = ctypes.create_string_buffer(b"x")
one = iovec(ctypes.addressof(word), 1)
many = (mmsghdr * 1024)(*[mmsghdr(msghdr(iov=ctypes.pointer(one), iovlen=1), 0) for _ in range(1024)])
libc = ctypes.CDLL(None)
for sock in clients():
    sock.setblocking(True)
    while libc.sendmmsg(sock.fileno(), many, 1024, 0x4000) > 0:
        pass
""",
    "crashes": _CHILD
    + """
def crash():
    files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)]
    try:
        kept = client()
    finally:
        os.kill(os.getpid(), signal.SIGKILL)

while True:
    in_a_child(crash)
    time.sleep(0.09)
""",
    "programs executed by clients": _CHILD
    + """
def execute():
    files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND), os.open("/dev/full", os.O_RDWR)]
    sock, fds = client()
    os.set_inheritable(sock.fileno(), True)
    os.execv("/bin/sleep", ["sleep", "0.2"])

while True:
    in_a_child(execute)
""",
    "debuggees that never acknowledge": """
while True:
    try:
        sock = connect()
        introduce(sock, 3)
        files = socket.recv_fds(sock, 64, 4)[1]
    except OSError:
        time.sleep(0.1)
        continue
    time.sleep(0.05)
    for fd in files:
        os.close(fd)
    sock.close()
""",
    "command lines that flood": _CROWD
    + """
def ask(sock):
    introduce(sock, 4)
    command(sock, "get_default_client_priority")

while True:
    crowd(200, 0.5, ask)
""",
    "command lines that idle": _CROWD
    + """
while True:
    crowd(900, 5, lambda sock: introduce(sock, 4))
""",
    "peers that say nothing": _CROWD
    + """
while True:
    crowd(900, 1)
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
os.makedirs(sys.argv[3], exist_ok=True)
while True:
    for _ in range(20):
        number += 1
        path = os.path.join(sys.argv[3], f"core.{os.getpid()}{number % 1000:03}")
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            continue
        os.write(file, b"\\x7fELF\\x02\\x01\\x01" + bytes(57))
        os.ftruncate(file, 200 << 20)
        os.close(file)
    time.sleep(0.1)
    for name in os.listdir(sys.argv[3]) if os.access(sys.argv[3], os.R_OK) else ():
        try:
            os.unlink(os.path.join(sys.argv[3], name))
        except OSError:
            pass
""",
    "zone tables and decoys": _CHILD
    + """
def hide():
    tables = [os.memfd_create("mpsguard-zones") for _ in range(64)]
    for table in tables:
        os.ftruncate(table, 1 << 24)
        os.pwrite(table, os.urandom(4096), 0)
    files = [os.open("/dev/full", os.O_RDWR | os.O_APPEND) for _ in range(64)]
    kept = client()
    time.sleep(0.5)

while True:
    in_a_child(hide)
""",
    "a locked memory map": LOCKED_MEMORY_MAP,
    "held locks": HELD_LOCKS
    + """
run = os.path.dirname(sys.argv[4])
for path in (PUBLIC, f"{PUBLIC}/log", f"{PUBLIC}/control_lock", run, f"{run}/vault.lock", sys.argv[3]):
    held(path)
signal.pause()
""",
    "an execve that does not end": HELD_EXEC,
    "held descriptors": HELD_DESCRIPTORS,
    "the vault": _CHILD
    + f"""
def attack_vault(name):
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os.dup2(1, 2)
    signal.alarm(3)
    vault_attacks.main(name, sys.argv[4], os.getuid())

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
        in_a_child(lambda: attack_vault(name))
""",
}
"""Each goes on until it is killed. The program's arguments: the public directory, a file with a page that never
comes, the directory of core dumps, the vault's socket."""

IMPORTS: Final = (
    "import random\nfrom tests.hostile import vault_attacks\nfrom tests.hostile.lingering import lingering\n"
)
"""Before the user changes: the interpreter may lie where that user cannot read."""
