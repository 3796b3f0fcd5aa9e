"""Checkpoints of a session while its program runs, the program's side: needs the extra ``images``.

from mpsguard.images import checkpoints

checkpoint = checkpoints.of(session).take("run-1")
...
checkpoint.wait()
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from mpsguard.images.checkpoints.options import CheckpointOptions
from mpsguard.vault.wire.errors import NotPermittedError
from mpsguard.vault.wire.region import LeaseRole

if TYPE_CHECKING:
    from mpsguard.images.checkpoints.checkpoints import Checkpoints
    from mpsguard.images.checkpoints.writing_session import WritingSession


def of(
    session: WritingSession,
    *,
    store: str | os.PathLike[str] | None = None,
    quota: int | None = None,
    spare: int = 0,
    buffers: int = 1 << 30,
    patience: float = 1.0,
    deadline: float = 600.0,
    retries: int = 2,
) -> Checkpoints:
    """Return what takes a session's checkpoints; the other arguments count at the first call for it.

    A writer that has called it can also be asked for checkpoints by ``mpsguard-ctl vault checkpoint``, and takes them
    when it publishes.

    Args:
        session: it ends them when it is closed.
        store: directory of the image store; None: `mpsguard.images.store.location.default_directory`.
        quota: bytes that the store may take up; None: `mpsguard.images.store.location.default_quota`.
        spare: bytes of memory, of the kind that the regions are, to set pieces aside that are about to be written.
        buffers: bytes of host memory in which pieces wait for the disk; pinned, if a region lies on a GPU.
        patience: seconds that a checkpoint may hold the program in all; then it is given up.
        deadline: seconds from the cut to the commit; then the checkpoint is given up.
        retries: how often a checkpoint that an unannounced write tore is taken again.

    Raises:
        NotPermittedError: this process is a reader.
    """
    # Here: the copier imports modules of this package, and need not load all of the writer's side.
    from mpsguard.images.checkpoints.checkpoints import Checkpoints  # noqa: PLC0415
    from mpsguard.images.store.location import default_directory, default_quota  # noqa: PLC0415

    if session.role is LeaseRole.READER:
        raise NotPermittedError("a reader takes no checkpoints")

    def make() -> Checkpoints:
        # Absolute: the copier starts later, and in the working directory of that time.
        directory = default_directory() if store is None else Path(store).absolute()
        limit = default_quota() if quota is None else quota
        return Checkpoints(session, CheckpointOptions(directory, limit, spare, buffers, patience, deadline, retries))

    return session.memory.observed_by(Checkpoints, make)
