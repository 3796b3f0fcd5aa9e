"""The preparation of a worker for the scenes of a pool."""

import socket

from mpsguard.images.pool.worker import Assigned, Serve, Start


def prepare() -> Start:
    """There is nothing to prepare."""
    return _start


def _start(assigned: Assigned) -> Serve:
    assert assigned.pages is not None

    def serve(connection: socket.socket) -> None:
        connection.sendall(assigned.payload)
        # Until the program closes it.
        connection.recv(1)

    return serve
