"""A preparation for workers of the tests. What they do wrong is said by files, each of which one worker takes."""

import gc
import os
import signal
import socket
from pathlib import Path

from mpsguard.pool.worker import Assigned, Serve, Start

_collected: list[bool] = []
"""Whether the collector was on in the preparation."""


def prepare() -> Start:
    _dies("prepare")
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


def _start(assigned: Assigned) -> Serve:
    _dies("start")
    assert assigned.pages is not None
    if assigned.payload == b"refuse":
        raise ValueError("this is not for me")
    pages = {name: assigned.pages.map(name, private=True) for name in assigned.pages.places}
    _dies("mapped")

    def serve(connection: socket.socket) -> None:
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
    """Die, if a file says so; each file is for one worker."""
    for path in sorted(Path(os.environ["POOL_TEST"]).glob(f"{step}-*")):
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
