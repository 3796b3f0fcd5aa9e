"""A TCP connection that carries an image: to the peer with the secret, and not over a network unless that is wanted."""

import ipaddress
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final, NamedTuple

import click

from mpsguard.cli.image_commands import one_time_secret
from mpsguard.cli.listening import Address, address
from mpsguard.images.store.errors import StreamError
from mpsguard.images.store.stream_frames import Readable, Writable

IDLE: Final = 60.0
"""Seconds after which a peer that neither sends nor takes anything is given up."""


class Ends(NamedTuple):
    """Both directions of a connection."""

    incoming: Readable
    outgoing: Writable


def one_address(_context: click.Context, _parameter: click.Parameter, word: str | None) -> Address | None:
    """HOST:PORT as click hands it over; click.BadParameter."""
    return None if word is None else address(word)


@contextmanager
def accepted(at: Address, within: float, *, network: bool) -> Iterator[Ends]:
    """Listen, print a secret, and yield the first connection of a peer that has it.

    Args:
        at: where to listen.
        within: seconds to wait for it.
        network: whether the address may be one that other machines reach.

    Raises:
        StreamError: the address cannot be had, or no peer connected in time.
    """
    family, place = _resolved(at, network=network)
    try:
        with socket.create_server(place, family=family, backlog=socket.SOMAXCONN) as listener:
            click.echo(f"listening on {_shown(listener)}", err=True)
            secret = one_time_secret.new()
            click.echo(f"secret: {secret}", err=True)
            sock = one_time_secret.first_with(secret, listener, within)
    except TimeoutError:
        raise StreamError(f"no peer with the secret connected to {at.host}:{at.port} within {within:g} s") from None
    except OSError as error:
        raise StreamError(f"{at.host}:{at.port}: {error.strerror or error}") from None
    with ends_of(sock) as ends:
        yield ends


@contextmanager
def connected(to: Address, within: float, secret: Callable[[], str], *, network: bool) -> Iterator[Ends]:
    """Connect, and yield the connection once both ends have proven that they have the secret.

    Args:
        to: where to.
        within: seconds to wait for it.
        secret: returns what the listener printed.
        network: whether the address may be one of another machine.

    Raises:
        StreamError: no peer listens there, or it does not have the secret.
    """
    family, place = _resolved(to, network=network)
    known = secret()
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.settimeout(within)
        sock.connect(place)
        one_time_secret.prove(known, sock)
    except OSError as error:
        sock.close()
        raise StreamError(f"{to.host}:{to.port}: {error.strerror or error}") from None
    except BaseException:
        sock.close()
        raise
    with ends_of(sock) as ends:
        yield ends


@contextmanager
def ends_of(sock: socket.socket) -> Iterator[Ends]:
    """Yield a connection's directions, and close it."""
    with sock:
        sock.settimeout(IDLE)
        incoming, outgoing = sock.makefile("rb"), sock.makefile("wb")
        try:
            yield Ends(incoming, outgoing)
        finally:
            for each in (incoming, outgoing):
                # What was not sent when a transfer failed would raise its own error here, in the place of that one.
                with suppress(OSError):
                    each.close()


def _resolved(at: Address, *, network: bool) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, _, _, _, place = socket.getaddrinfo(at.host or None, at.port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise StreamError(f"{at.host}:{at.port}: {getattr(error, 'strerror', None) or error}") from None
    host = str(place[0])
    if not network and not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise StreamError(
            f"{at.host}:{at.port}: other machines reach this address, and the stream is neither encrypted nor "
            "authenticated: go through ssh, or say --unprotected"
        )
    return family, (host, int(place[1]))


def _shown(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
