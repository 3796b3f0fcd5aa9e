"""How a program joins a session: as its writer, or as the standby of `mpsguard run --standby`."""

import os
from collections.abc import Sequence
from typing import Final

from mpsguard.client.session import Session
from mpsguard.supervisor import role
from mpsguard.vault.errors import BadRequestError
from mpsguard.vault.region import Grant, LeaseRole

_LEASES: Final[dict[str, LeaseRole]] = {
    role.ProcessRole.ACTIVE: LeaseRole.WRITER,
    role.ProcessRole.STANDBY: LeaseRole.STANDBY,
}


def join(
    name: str,
    *,
    socket: str | None = None,
    capacity: int = 65536,
    keep: float | None = 300.0,
    grants: Sequence[Grant] = (),
    deadline: float = 10.0,
) -> Session:
    """Attach to the session ``name`` in the role that the environment gives; other arguments as for `Session`.

    Afterwards create or map the regions, and call `Session.ready`.

    Raises:
        BadRequestError: the environment names an unknown role.
    """
    word = os.environ.get(role.ROLE_VARIABLE, role.ProcessRole.ACTIVE)
    if word not in _LEASES:
        raise BadRequestError(f"{role.ROLE_VARIABLE}: {word!r} is neither active nor standby")
    return Session(
        name, role=_LEASES[word], socket=socket, capacity=capacity, keep=keep, grants=grants, deadline=deadline
    )
