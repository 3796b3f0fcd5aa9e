"""A preparation for workers of the tests. What they do wrong is said by files, each of which one worker takes."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from mpsguard.images.pool.worker import Assigned, Serve, Start, Warm
from tests.hostile.lingering import lingering

_collected: list[bool] = []
"""Whether the collector was on in the preparation."""


def prepare() -> Start:
    _dies("prepare")
    if _taken("leave"):
        subprocess.Popen(["/bin/sleep", "1000"])
    _collected.append(gc.isenabled())
    _Circle()
    return _start


class _Circle:
    """An object that only the collector ends."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        _Circle.alive += 1

    def __del__(self) -> None:
        _Circle.alive -= 1


def prepare_or_hang() -> Start:
    """Never return, if a file says so."""
    if _taken("hang"):
        (Path(os.environ["POOL_TEST"]) / f"hangs {os.getpid()}").touch()
        threading.Event().wait()
    return prepare()


def prepare_and_stall() -> Start:
    """Read a file that never answers, from where no signal gets a process."""
    Path(os.environ["POOL_STALLS"]).read_bytes()
    return _start


def prepare_and_lie() -> Warm:
    """Break the protocol while waiting, and go on as if nothing was, if a file says so."""

    def check() -> None:
        if _taken("lie"):
            os.write(int(sys.argv[1]), b"nonsense")
            threading.Event().wait()
        if _taken("linger"):
            sent, peer = lingering()
            with socket.socket(fileno=os.dup(int(sys.argv[1]))) as channel:
                try:
                    socket.send_fds(channel, [b"nonsense"], [sent.fileno()])
                except PermissionError:
                    os._exit(1)
            sent.close()
            peer.detach()
            threading.Event().wait()

    return Warm(prepare(), check)


def _start(assigned: Assigned) -> Serve:
    _dies("start")
    assert assigned.pages is not None
    if assigned.payload == b"refuse":
        raise ValueError("this is not for me")
    if assigned.payload == b"refuse a path":
        raise ValueError(f"no file {os.fsdecode(bytes([0xFF]))}")
    pages = {name: assigned.pages.map(name, private=True) for name in assigned.pages.places}
    _dies("mapped")

    def serve(connection: socket.socket) -> None:
        if assigned.payload == b"linger":
            threading.Thread(target=threading.Event().wait).start()
            return
        connection.sendall(f"{os.getpid()} {assigned.payload.decode()}\n".encode())
        while request := connection.recv(100):
            _dies("serve")
            if request == b"collector":
                connection.sendall(
                    f"{_collected} {gc.isenabled()} {gc.get_freeze_count() > 0} {_Circle.alive}".encode()
                )
                continue
            region, _, text = request.decode().partition(" ")
            if text:
                pages[region][: len(text)] = text.encode()
            connection.sendall(pages[region][:16])

    return serve


def _dies(step: str) -> None:
    """Die, if a file says so."""
    if _taken(step):
        os.kill(os.getpid(), signal.SIGKILL)


def _taken(step: str) -> bool:
    """Return whether a file said so; each is for one worker."""
    for path in sorted(Path(os.environ["POOL_TEST"]).glob(f"{step}-*")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        return True
    return False
