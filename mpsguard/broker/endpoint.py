"""Endpoint: a public directory and the broker that serves its sockets."""

from pathlib import Path

from mpsguard.broker.broker import Broker
from mpsguard.broker.public_directory import PublicDirectory


class Endpoint:
    """Owns a public directory and its broker."""

    def __init__(self, path: Path, broker: Broker, lock: Path) -> None:
        self.directory = PublicDirectory(path, lock)
        self.broker = broker
