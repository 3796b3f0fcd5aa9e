"""How a program joins a session: as its writer, or as the standby of `mpsguard run --standby`."""

import os
from collections.abc import Callable, Sequence
from typing import Final

from mpsguard.vault.client.session import Session
from mpsguard.vault.wire import supervisor_wire
from mpsguard.vault.wire.errors import BadRequestError
from mpsguard.vault.wire.region import Grant, LeaseRole

_LEASES: Final[dict[str, LeaseRole]] = {
    supervisor_wire.ProcessRole.ACTIVE: LeaseRole.WRITER,
    supervisor_wire.ProcessRole.STANDBY: LeaseRole.STANDBY,
}


def join(
    name: str,
    *,
    socket: str | None = None,
    capacity: int = 65536,
    keep: float | None = 300.0,
    grants: Sequence[Grant] = (),
    deadline: float = 10.0,
    fill: Callable[[Session], None] | None = None,
) -> Session:
    """Attach to the session ``name`` in the role that the environment gives; other arguments as for `Session`.

    Afterwards create or map the regions, and call `Session.ready`.

    Args:
        fill: makes the regions of a session in which nothing was published yet, if this process writes it, and
            publishes its first state. `mpsguard.images.membership.join` does that from an image. A session
            that goes on keeps what it has.

    Raises:
        BadRequestError: the environment names an unknown role, or an image, which needs a ``fill``.
        Exception: those of ``fill``; the session is left then.
    """
    word = os.environ.get(supervisor_wire.ROLE_VARIABLE, supervisor_wire.ProcessRole.ACTIVE)
    if word not in _LEASES:
        raise BadRequestError(f"{supervisor_wire.ROLE_VARIABLE}: {word!r} is neither active nor standby")
    if fill is None and (image := os.environ.get(supervisor_wire.IMAGE_VARIABLE)):
        # It would begin with nothing, and the next checkpoint of it would take the image's name.
        raise BadRequestError(
            f"{supervisor_wire.IMAGE_VARIABLE} is {image!r}, and this program fills no session from an image: "
            "join by mpsguard.images.membership"
        )
    session = Session(
        name, role=_LEASES[word], socket=socket, capacity=capacity, keep=keep, grants=grants, deadline=deadline
    )
    try:
        if fill is not None and session.role is LeaseRole.WRITER and session.state() is None:
            fill(session)
    except BaseException:
        session.close()
        raise
    return session
