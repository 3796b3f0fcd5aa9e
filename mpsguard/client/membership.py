"""How a program joins a session: as its writer, or as the standby of `mpsguard run --standby`."""

import os
from collections.abc import Sequence
from pathlib import Path
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
    image: str | None = None,
    store: str | os.PathLike[str] | None = None,
    device: int = 0,
) -> Session:
    """Attach to the session ``name`` in the role that the environment gives; other arguments as for `Session`.

    Afterwards create or map the regions, and call `Session.ready`.

    Args:
        image: what to fill a session from in which nothing was published yet, if this process writes it; None:
            MPSGUARD_IMAGE, or nothing. Needs the extra ``images``. A session that goes on keeps what it has.
        store: directory of the image's store; None: `mpsguard.images.location.default_directory`.
        device: CUDA's ordinal of the GPU for regions that lay on one.

    Raises:
        BadRequestError: the environment names an unknown role.
        Exception: as `mpsguard.client.checkpoints.restore.restore`, and `ImageError`; the session is left then.
    """
    word = os.environ.get(role.ROLE_VARIABLE, role.ProcessRole.ACTIVE)
    if word not in _LEASES:
        raise BadRequestError(f"{role.ROLE_VARIABLE}: {word!r} is neither active nor standby")
    session = Session(
        name, role=_LEASES[word], socket=socket, capacity=capacity, keep=keep, grants=grants, deadline=deadline
    )
    wanted = os.environ.get(role.IMAGE_VARIABLE) if image is None else image
    try:
        if wanted and session.role is LeaseRole.WRITER and session.state() is None:
            _fill(session, wanted, store, device)
    except BaseException:
        session.close()
        raise
    return session


def _fill(session: Session, image: str, store: str | os.PathLike[str] | None, device: int) -> None:
    # They need blake3, which a program without images need not have.
    from mpsguard.client.checkpoints.restore import restore  # noqa: PLC0415
    from mpsguard.images.location import default_directory  # noqa: PLC0415
    from mpsguard.images.store import ImageStore  # noqa: PLC0415

    directory = default_directory() if store is None else Path(store)
    with ImageStore(directory) as images, images.open(image) as opened:
        restore(session, opened, device=device)
