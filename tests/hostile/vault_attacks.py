"""What a stranger does to the vault: a process of another user, which runs one of these functions and waits.

python -m tests.hostile.vault_attacks FUNCTION SOCKET UID [FILE]
"""

import array
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from mpsguard.client import Chunk, Grant, LeaseRole, Session
from mpsguard.images.checkpoints.request_page import new_page
from mpsguard.linux.descriptors import memfd
from mpsguard.vault.wire import checkpoint_requests, state_buffer, wire
from mpsguard.vault.wire.region import RegionLayout
from mpsguard.vault.wire.state_buffer import State
from tests.hostile.lingering import lingering

DEADLINE = 15.0
CLONE_NEWUSER = 0x10000000
SPOILT = 16 << 20
"""Capacity of the session of `spoil_and_leave`."""


class Stranger:
    """What an attacker has: a raw connection, and descriptors that do not close."""

    def __init__(self, path: str, file: str = "") -> None:
        self.path = path
        self.file = file
        """One of which no page ever comes."""
        self.pages: mmap.mmap | None = None
        self.held: list[socket.socket] = []

    def connect(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.settimeout(DEADLINE)
        sock.connect(self.path)
        return sock

    def lingering(self) -> socket.socket:
        """Return a TCP socket with a last close that takes ten minutes."""
        ours, peer = lingering(600)
        self.held.append(peer)
        return ours

    @staticmethod
    def send(sock: socket.socket, message: wire.Request, fds: tuple[int, ...] = ()) -> bool:
        """Whether the kernel took it."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        try:
            sock.sendmsg([wire.encode(message)], rights)
        except OSError:
            return False
        return True

    @staticmethod
    def answer(sock: socket.socket) -> wire.Answer | wire.Notice | None:
        data, fds, _, _ = socket.recv_fds(sock, wire.MAX_PACKET, 253)
        for fd in fds:
            os.close(fd)
        return wire.decode_reply(data) if data else None

    def session(self, name: str, token: int, keep: float | None = 0.0) -> socket.socket:
        """A connection that is the writer of a session of its own."""
        sock = self.connect()
        assert self.send(sock, wire.Hello(1, wire.VERSION, name, LeaseRole.WRITER, token=token, keep=keep))
        assert isinstance(self.answer(sock), wire.Welcome)
        return sock

    def announced(self, name: str, token: int, chunks: int) -> socket.socket:
        """A connection on which the vault waits for descriptors."""
        sock = self.session(name, token)
        assert self.send(sock, wire.Create(2, "r", RegionLayout((4096,) * chunks)))
        assert isinstance(self.answer(sock), wire.Proceed)
        return sock

    # --- memory of which it has writable descriptors

    def writable(self) -> list[int]:
        """All memory files that this process has and may write to."""
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                link, flags = os.readlink(f"/proc/self/fd/{name}"), fcntl.fcntl(int(name), fcntl.F_GETFL)
            except OSError:
                continue
            if link.startswith("/memfd:") and flags & os.O_ACCMODE != os.O_RDONLY:
                found.append(int(name))
        return found

    def hold(self, fds: Sequence[int]) -> None:
        """Hold the lock of each inode: by a write of a page that never comes."""
        if self.pages is None:
            # Once: opening it again would have those that wait try again, and fail.
            self.pages = mmap.mmap(os.open(self.file, os.O_RDONLY), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
        for fd in fds:
            thread = threading.Thread(target=_write, args=(fd, self.pages), daemon=True)
            thread.start()
            due, still = time.monotonic() + DEADLINE, 0
            while still < 20:
                assert time.monotonic() < due, "the write does not wait"
                time.sleep(0.001)
                still = 0 if _is_running(thread) else still + 1
            assert thread.is_alive()


def at_the_greeting(stranger: Stranger) -> None:
    for _ in range(4):
        sock = stranger.connect()
        trap = stranger.lingering().detach()
        Stranger.send(sock, wire.Hello(1, wire.VERSION, "bad", LeaseRole.WRITER, token=7), (trap,))
        let_go(trap)
        stranger.held.append(sock)


def before_anything_is_accepted(stranger: Stranger) -> None:
    """Queued and never read: the vault's own close would destroy them."""
    for _ in range(4):
        sock = stranger.connect()
        trap = stranger.lingering().detach()
        Stranger.send(sock, wire.Names(1), (trap,))
        let_go(trap)
        sock.close()


def beyond_the_limit(stranger: Stranger) -> None:
    """On connections that are refused, and so never read: the vault's own close would destroy what is queued."""
    stranger.held += [stranger.connect() for _ in range(128)]
    before_anything_is_accepted(stranger)


def as_chunks(stranger: Stranger) -> None:
    for number in range(4):
        sock = stranger.announced(f"bad{number}", 100 + number, 4)
        fds = tuple(stranger.lingering().detach() for _ in range(4))
        assert Stranger.send(sock, wire.Chunks(2, 4), fds)
        let_go(*fds)
        stranger.held.append(sock)


def more_than_agreed_and_gone(stranger: Stranger) -> None:
    """While descriptors may come, more of them come, in unwanted packets, and then the end."""
    for number in range(4):
        sock = stranger.announced(f"bad{number}", 100 + number, 1)
        sock.setblocking(False)
        trap = stranger.lingering().detach()
        for _ in range(100):
            if not Stranger.send(sock, wire.Chunks(2, 100), (trap,) * 100):
                break
        let_go(trap)
        sock.close()


def in_the_middle(stranger: Stranger) -> None:
    """Half a region, and then nothing for ever."""
    memory = os.memfd_create("stranger")
    os.ftruncate(memory, 4096)
    for number in range(4):
        sock = stranger.announced(f"bad{number}", 100 + number, 253)
        assert Stranger.send(sock, wire.Chunks(2, 200), (memory,) * 200)
        stranger.held.append(sock)


def a_file_that_does_not_close(stranger: Stranger) -> None:
    """A file of a file system that does not answer: whichever process closes a copy of it waits."""
    sock = stranger.announced("bad", 100, 1)
    assert stranger.send(sock, wire.Chunks(2, 1), (os.open(stranger.file, os.O_RDONLY),))
    stranger.held.append(sock)


def lingering_when_told(stranger: Stranger) -> None:
    """At SIGUSR1, to a porter that is stopped, a descriptor that lingers; once it has ended, ask for the lease."""
    sock = stranger.announced("bad", 100, 1)

    def send(*_: object) -> None:
        trap = stranger.lingering().detach()
        assert stranger.send(sock, wire.Chunks(2, 1), (trap,))
        os.close(trap)
        os.write(1, b"sent\n")
        sock.settimeout(None)
        answer = stranger.answer(sock)
        assert answer is None, answer
        again = stranger.connect()
        assert stranger.send(again, wire.Hello(1, wire.VERSION, "bad", LeaseRole.WRITER, token=100, again=True))
        os.write(1, f"{type(stranger.answer(again)).__name__}\n".encode())
        signal.pause()

    signal.signal(signal.SIGUSR1, send)


def under_two_uids(stranger: Stranger) -> None:
    """At SIGUSR1, once the user namespace that this makes has two uids: a session of each."""
    assert not ctypes.CDLL(None).unshare(CLONE_NEWUSER)

    def connect(*_: object) -> None:
        if os.fork() == 0:
            os.setresuid(1, 1, 1)
            # At the latest.
            signal.alarm(300)
        stranger.held.append(stranger.session("s", os.getpid()))
        signal.pause()

    signal.signal(signal.SIGUSR1, connect)


def _write(fd: int, pages: mmap.mmap) -> None:
    try:
        os.pwrite(fd, memoryview(pages), 0)
    except OSError:
        # The file system has ended.
        return


def _is_running(thread: threading.Thread) -> bool:
    # As bytes: this user may not load another codec.
    with open(f"/proc/self/task/{thread.native_id}/stat", "rb") as file:
        return file.read().rpartition(b") ")[2][:1] == b"R"


def sealed_memory() -> int:
    fd = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    memfd.fix_size(fd)
    return fd


def let_go(*fds: int) -> None:
    """Close our own copies, on a thread: the last of them would linger here."""
    for fd in fds:
        threading.Thread(target=os.close, args=(fd,), daemon=True).start()


def take_all_there_is(stranger: Stranger) -> None:
    """Sessions and regions until there are no more to be had."""
    memory = sealed_memory()
    for number in range(1, 2000):
        sock = stranger.connect()
        stranger.held.append(sock)
        Stranger.send(
            sock, wire.Hello(1, wire.VERSION, f"s{number}", LeaseRole.WRITER, token=os.getpid() * 10000 + number)
        )
        if isinstance(Stranger.answer(sock), wire.Failure):
            break
    for number in range(2000):
        Stranger.send(stranger.held[0], wire.Create(2, f"r{number}", RegionLayout((4096,))))
        if isinstance(Stranger.answer(stranger.held[0]), wire.Failure):
            break
        Stranger.send(stranger.held[0], wire.Chunks(2, 1), (memory,))
        Stranger.answer(stranger.held[0])
    else:
        raise AssertionError("there was no end of it")


def ask_for_host_memory(stranger: Stranger) -> None:
    """More than there is for one user, announced; and less, that could grow."""
    sock = stranger.session("greedy", 1)
    Stranger.send(sock, wire.Create(2, "r", RegionLayout((1 << 31,))))
    answer = Stranger.answer(sock)
    assert isinstance(answer, wire.Failure)
    assert answer.code == "quota"
    growing = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(growing, 4096)
    Stranger.send(sock, wire.Create(3, "r", RegionLayout((4096,))))
    assert isinstance(Stranger.answer(sock), wire.Proceed)
    Stranger.send(sock, wire.Chunks(3, 1), (growing,))
    answer = Stranger.answer(sock)
    assert isinstance(answer, wire.Failure)
    assert answer.code == "bad_request"
    fixed = sealed_memory()
    Stranger.send(sock, wire.Create(4, "r", RegionLayout((4096,))))
    assert isinstance(Stranger.answer(sock), wire.Proceed)
    Stranger.send(sock, wire.Chunks(4, 1), (fixed,))
    assert isinstance(Stranger.answer(sock), wire.Done)
    try:
        os.ftruncate(fixed, 1 << 40)
    except PermissionError:
        return
    raise AssertionError("it grew after it was counted")


def hold_all_and_leave(stranger: Stranger) -> None:
    """Hold the locks of all memory that the vault shares with a writer, then give the lease back."""
    writer_of_everything(stranger)
    stranger.hold(stranger.writable())
    assert stranger.send(stranger.held[-1], wire.Leave(3))


def hold_all(stranger: Stranger) -> None:
    """Hold the locks of all memory that the vault shares with a writer, and stay."""
    writer_of_everything(stranger)
    stranger.hold(stranger.writable())


_sessions: list[Session] = []
"""Kept until the process ends."""


def send_memory_that_is_held(stranger: Stranger) -> None:
    """Memory that is being written to, as a region: open to growth it is refused, sealed it is taken."""
    sock = stranger.session("s", 1)
    for number, sealed in enumerate((False, True), 2):
        fd = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        if sealed:
            memfd.fix_size(fd)
        stranger.hold([fd])
        assert stranger.send(sock, wire.Create(number, f"r{number}", RegionLayout((4096,))))
        assert isinstance(stranger.answer(sock), wire.Proceed)
        assert stranger.send(sock, wire.Chunks(number, 1), (fd,))
        answer = stranger.answer(sock)
        if sealed:
            assert isinstance(answer, wire.Done), answer
        else:
            assert isinstance(answer, wire.Failure), answer
            assert answer.code == "bad_request"


def write_large_ranges_and_leave(stranger: Stranger) -> None:
    """Write all of the state buffer from many threads, which wait for its lock one behind the other, then leave."""
    writer_of_everything(stranger, capacity=16 << 20)
    buffer = max(stranger.writable(), key=lambda fd: os.fstat(fd).st_size)
    content = mmap.mmap(-1, os.fstat(buffer).st_size, mmap.MAP_PRIVATE)

    def write() -> None:
        while True:
            os.pwrite(buffer, memoryview(content), 0)

    for _ in range(400):
        threading.Thread(target=write, daemon=True).start()
    assert stranger.send(stranger.held[-1], wire.Leave(3))


def spoil_and_leave(stranger: Stranger) -> None:
    """Fill each slot of a large state buffer with a state under a wrong checksum, then leave."""
    writer_of_everything(stranger, capacity=SPOILT)
    buffer = max(stranger.writable(), key=lambda fd: os.fstat(fd).st_size)
    for sequence in range(1, state_buffer.SLOTS + 1):
        slot = bytearray(state_buffer.slot_bytes(State(sequence, 1, bytes(SPOILT))))
        slot[-1] ^= 1
        os.pwrite(buffer, slot, state_buffer.slot_at(sequence, SPOILT))
    assert stranger.send(stranger.held[-1], wire.Leave(3))
    assert isinstance(stranger.answer(stranger.held[-1]), wire.Done)


def writer_of_everything(stranger: Stranger, capacity: int = 65536) -> None:
    """A session with a state, a region, a page for checkpoints and counts of latencies, all descriptors at hand."""
    grants = [Grant(0)]
    session = Session("held", socket=stranger.path, keep=None, grants=grants, capacity=capacity, deadline=DEADLINE)
    _sessions.append(session)
    session.publish(b"published")
    fd = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 4096)
    session.create("r", [Chunk(fd, 4096)])
    session.create(checkpoint_requests.REGION, new_page())
    session.latency()
    # The client's own copies of the state buffer are mapped alone: ask for another.
    sock = stranger.connect()
    hello = wire.Hello(1, wire.VERSION, "held", LeaseRole.WRITER, token=session._hello.token, again=True)
    assert stranger.send(sock, hello)
    data, fds, _, _ = socket.recv_fds(sock, wire.MAX_PACKET, 253)
    assert isinstance(wire.decode_reply(data), wire.Welcome)
    assert fds
    stranger.held.append(sock)


def main(name: str, path: str, uid: int, file: str = "") -> None:
    """Become the user, attack, say so, and wait for the end."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    stranger = Stranger(path, file)
    globals()[name](stranger)
    os.write(1, b"done\n")
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
