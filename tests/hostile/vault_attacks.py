"""What a stranger does to the vault: a process of another user, which runs one of these functions and waits.

python -m tests.hostile.vault_attacks FUNCTION SOCKET UID
"""

import array
import os
import signal
import socket
import sys
import threading

from mpsguard.client import LeaseRole
from mpsguard.vault import wire
from mpsguard.vault.region import RegionLayout
from tests.hostile.lingering import lingering

DEADLINE = 30.0


class Stranger:
    """What an attacker has: a raw connection, and descriptors that do not close."""

    def __init__(self, path: str) -> None:
        self.path = path
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


def let_go(*fds: int) -> None:
    """Close our own copies, on a thread: the last of them would linger here."""
    for fd in fds:
        threading.Thread(target=os.close, args=(fd,), daemon=True).start()


def take_all_there_is(stranger: Stranger) -> None:
    """Sessions and regions until there are no more to be had."""
    memory = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(memory, 4096)
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
    growing = os.memfd_create("stranger")
    os.ftruncate(growing, 4096)
    Stranger.send(sock, wire.Create(3, "r", RegionLayout((4096,))))
    assert isinstance(Stranger.answer(sock), wire.Proceed)
    Stranger.send(sock, wire.Chunks(3, 1), (growing,))
    answer = Stranger.answer(sock)
    assert isinstance(answer, wire.Failure)
    assert answer.code == "bad_request"
    fixed = os.memfd_create("stranger", os.MFD_ALLOW_SEALING)
    os.ftruncate(fixed, 4096)
    Stranger.send(sock, wire.Create(4, "r", RegionLayout((4096,))))
    assert isinstance(Stranger.answer(sock), wire.Proceed)
    Stranger.send(sock, wire.Chunks(4, 1), (fixed,))
    assert isinstance(Stranger.answer(sock), wire.Done)
    try:
        os.ftruncate(fixed, 1 << 40)
    except PermissionError:
        return
    raise AssertionError("it grew after it was counted")


def main(name: str, path: str, uid: int) -> None:
    """Become the user, attack, say so, and wait for the end."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    stranger = Stranger(path)
    globals()[name](stranger)
    os.write(1, b"done\n")
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
