"""How a program joins a session that an image fills, if nothing was published in it yet."""

import os
from collections.abc import Sequence
from pathlib import Path

from mpsguard.images.checkpoints.restore import restore
from mpsguard.images.store.location import default_directory
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client import membership
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire.region import Grant
from mpsguard.vault.wire.supervisor_wire import IMAGE_VARIABLE


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
    """Join a session as `mpsguard.client.join` does, and fill it from an image if it is new and this process writes it.

    Args:
        name: as for `mpsguard.client.join`, and so are the arguments that are not named here.
        socket: as there.
        capacity: as there; the image's forward state has to fit.
        keep: as there.
        grants: as there.
        deadline: as there.
        image: what to fill the session from; None: MPSGUARD_IMAGE, or nothing. A session that goes on keeps what it
            has.
        store: directory of the image's store; None: `mpsguard.images.store.location.default_directory`.
        device: CUDA's ordinal of the GPU for regions that lay on one.

    Raises:
        BadRequestError: the environment names an unknown role.
        Exception: as `mpsguard.images.checkpoints.restore.restore`, and `ImageError`; the session is left then.
    """
    wanted = os.environ.get(IMAGE_VARIABLE) if image is None else image

    def fill(session: Session) -> None:
        if wanted:
            directory = default_directory() if store is None else Path(store)
            with ImageStore(directory) as images, images.open(wanted) as opened:
                restore(session, opened, device=device)

    return membership.join(
        name, socket=socket, capacity=capacity, keep=keep, grants=grants, deadline=deadline, fill=fill
    )
