"""Listening sockets that several processes of a program share: --listen, and those that were handed to us."""

import socket
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Final, NamedTuple

import click

from mpsguard.linux.systemd import service_manager

_LAST_PORT: Final = 65535


class Address(NamedTuple):
    """Where to listen."""

    host: str
    port: int


def addresses(_context: click.Context, _parameter: click.Parameter, words: Sequence[str]) -> tuple[Address, ...]:
    """HOST:PORT as click hands them over; click.BadParameter."""
    return tuple(address(word) for word in words)


def address(word: str) -> Address:
    """Return the parts of HOST:PORT; click.BadParameter."""
    host, colon, port = word.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > _LAST_PORT:
        raise click.BadParameter(f"{word!r} is not HOST:PORT, or [HOST]:PORT for IPv6")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))


def take(owned: ExitStack, wanted: Sequence[Address]) -> dict[int, str]:
    """Those of a service manager, then one for each address: descriptors and names. They end with ``owned``.

    OSError for an address that cannot be had, or is not known.
    """
    listeners: dict[int, str] = {}
    for fd, name in service_manager.take_listen_fds().items():
        owned.enter_context(socket.socket(fileno=fd))
        listeners[fd] = name
    for index, (host, port) in enumerate(wanted):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = owned.enter_context(socket.create_server((host, port), family=family, backlog=socket.SOMAXCONN))
        listeners[sock.fileno()] = f"listen-{index}"
    return listeners
