"""The service manager's protocol: readiness, watchdog, sockets handed over, and the file-descriptor store.

The contract is sd_notify(3), sd_listen_fds(3) and systemd.service(5) FileDescriptorStoreMax=. Without a service
manager (NOTIFY_SOCKET and LISTEN_FDS unset) everything here is a no-op.
"""

import array
import os
import select
import socket
from typing import Final

_FIRST_FD: Final = 3


def notify(*assignments: str, fds: tuple[int, ...] = ()) -> bool:
    """Send ``KEY=VALUE`` lines (and descriptors, with FDSTORE=1); False if no service manager could be told.

    Waits while the manager is busy: an event loop uses a `NotifyQueue`.
    """
    try:
        sock = connect()
        if sock is None:
            return False
        with sock:
            sock.setblocking(True)
            send(sock, "\n".join(assignments).encode(), fds)
    except OSError:
        # There is no manager (any more), or no descriptor left: the message is of no use elsewhere.
        return False
    return True


def connect() -> socket.socket | None:
    """Return a non-blocking socket to the service manager, or None if there is none; raise OSError."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if address[:1] not in ("/", "@"):
        return None
    if address[0] == "@":
        address = "\0" + address[1:]
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def send(sock: socket.socket, text: bytes, fds: tuple[int, ...]) -> None:
    """Send one message, whole or not at all; raise OSError."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
    sock.sendmsg([text], ancillary)


def take_listen_fds() -> dict[int, str]:
    """The descriptors handed to this process, with their names, each made close-on-exec.

    They belong to the caller. The variables are taken out of the environment: no child shall mistake them for its own.
    """
    pid = os.environ.pop("LISTEN_PID", "")
    count = os.environ.pop("LISTEN_FDS", "")
    names = os.environ.pop("LISTEN_FDNAMES", "").split(":")
    if not count.isdigit() or pid != str(os.getpid()):
        return {}
    taken: dict[int, str] = {}
    for index in range(int(count)):
        fd = _FIRST_FD + index
        os.set_inheritable(fd, False)
        taken[fd] = names[index] if index < len(names) else ""
    return taken


def watchdog_interval() -> float | None:
    """Seconds between the WATCHDOG=1 messages this process owes (half the limit), or None if none are wanted."""
    usec = os.environ.get("WATCHDOG_USEC", "")
    pid = os.environ.get("WATCHDOG_PID", str(os.getpid()))
    if not usec.isdigit() or int(usec) == 0 or pid != str(os.getpid()):
        return None
    return int(usec) / 2_000_000


def barrier(deadline: float) -> bool:
    """Block until then; False if there is no service manager, or if it took longer than ``deadline`` seconds.

    systemd 246 and later close the descriptor that came with BARRIER=1 when its turn comes; earlier ones at once,
    as they do with every descriptor that they do not know what to do with.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            if not notify("BARRIER=1", fds=(theirs,)):
                return False
        finally:
            os.close(theirs)
        poller = select.poll()
        poller.register(ours, 0)
        # Nothing is asked for: what is reported is the hang-up.
        return bool(poller.poll(deadline * 1000))
    finally:
        os.close(ours)
