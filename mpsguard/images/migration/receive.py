"""The receiving side of a migration: the same program, started on the other GPU.

Which process goes on is decided by one thing: the lease of the session that moves. The receiver is a standby of it,
and reports that it is ready only when its own memory is equal to the last cut, behind which the writer stands still.
Then the writer gives its lease back, and the vault promotes the receiver. Before that, the receiver has nothing that
counts: if it ends, the writer goes on. After that, the writer cannot publish any more, and stands still until the
receiver goes on; if that does not come to pass, the old session is whole, and its program has to be started anew.

The new session has its regions before, and its forward state last, when the old one has been released. If the receiver
ends in between, the image of the handover has everything, and `receive` begins with it at the next start. A second
image beside it, of no regions, says so, from the promotion to the first publication: an image of a round, or of a
handover that came to nothing, is older than what its program went on to.
"""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.images.checkpoints.restore import restore
from mpsguard.images.migration.incoming import IncomingMemory
from mpsguard.images.migration.rounds import CopyRound, MigrationLimits, NextStep, next_step
from mpsguard.images.store.errors import ImageError, UnknownImageError
from mpsguard.images.store.image import Image
from mpsguard.images.store.location import default_directory
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire import checkpoint_requests
from mpsguard.vault.wire.checkpoint_requests import HELD, REGION, CheckpointOutcome
from mpsguard.vault.wire.errors import (
    BadRequestError,
    LeaseHeldError,
    UnknownRegionError,
    UnknownSessionError,
    VaultError,
)
from mpsguard.vault.wire.region import LeaseRole

_LOOK: Final = 0.0005
"""Seconds between two looks at the page of the writer."""
_GLANCE: Final = 0.05
"""Seconds between two looks at whether the writer goes on."""
_PROMOTED: Final = 2.0
"""Seconds for the vault to tell this process that it is the session's next writer; then another one is."""
_TAKEN: Final = "/taken"
"""Behind the name of a handover's image: the name of what says that its session is to be released."""
_RELEASE: Final = 5.0
"""Seconds for the former writer's processes to leave the session."""


class MigrationError(Exception):
    """The session stays where it is, and its program goes on there if it runs."""


def receive(
    name: str,
    source: str,
    *,
    socket: str | None = None,
    store: str | os.PathLike[str] | None = None,
    image: str | None = None,
    device: int = 0,
    capacity: int = 65536,
    keep: float | None = 300.0,
    limits: MigrationLimits | None = None,
    deadline: float = 60.0,
) -> Session:
    """Return the session ``name`` with all that ``source`` was, at the same addresses; its writer has ended then.

    To be called by the program on the other GPU in the place of `mpsguard.client.join`. If an earlier call was cut off
    behind the handover, this one ends it.

    Args:
        name: of the new session; it must not be ``source``.
        source: name of the session that moves; its program takes checkpoints (`checkpoints.of`) and publishes.
        socket: path of the vault's socket; None: as `Session`.
        store: directory of the images, this user's and the same as the writer's; None: the default one. Memory files
            are fastest.
        image: name of the image, at most 122 characters; None: ``migration/`` and the source's name.
        device: CUDA's ordinal of the GPU for regions that lie on one.
        capacity: of the new session: maximum size of the forward state in bytes.
        keep: of the new session: seconds that it is kept after its last lease has ended; None: until it is released.
        limits: of the rounds, and of the pause.
        deadline: seconds for each checkpoint of the writer.

    Raises:
        MigrationError: the session stays where it is, and its program goes on if it runs.
        VaultError, ImageError: likewise.
        Exception: the backend's errors; likewise.
    """
    image = f"migration/{source}" if image is None else image
    target = Session(name, socket=socket, capacity=capacity, keep=keep)
    try:
        directory = default_directory() if store is None else Path(store)
        if target.state() is not None:
            with suppress(ImageError), ImageStore(directory) as images:
                _Images(images, image, source).forget_taken()
            return target
        with ImageStore(directory) as images:
            # Another user's, in a directory such as /dev/shm, could have an image of the session's name.
            images.check_own()
            round_images = _Images(images, image, source)
            for left in list(target.names()):
                # Of an earlier call that was cut off: without a state it does not count, and it takes room.
                target.release(left)
            try:
                moving = Session(source, role=LeaseRole.STANDBY, socket=socket)
            except UnknownSessionError:
                _end_earlier(target, round_images, device)
                return target
            with ExitStack() as undo:
                undo.callback(moving.close)
                round_images.forget_taken()
                incoming = IncomingMemory(device)
                undo.callback(incoming.close)
                _Migration(moving, target, incoming, round_images, deadline).run(limits or MigrationLimits())
        return target
    except BaseException:
        # Regions without a state count for nothing, and take room.
        with suppress(VaultError):
            if target.state() is None:
                target.release()
        target.close()
        raise


class _Images(NamedTuple):
    """Where the rounds come from."""

    store: ImageStore
    name: str
    source: str

    def open(self) -> Image:
        """Open the image of the last round, which the caller closes; raise ImageError or MigrationError."""
        image = self.store.open(self.name)
        if image.manifest.session != self.source:
            image.close()
            raise MigrationError(
                f"image {self.name!r} is one of session {image.manifest.session!r}, not {self.source!r}"
            )
        return image

    def note_taken(self, manifest: Manifest) -> None:
        """Say that nothing is newer than this image; raise ImageError."""
        with self.store.begin(self.name + _TAKEN) as draft:
            draft.commit(Manifest.made_now(self.source, (), forward_state=_identity(manifest)))

    def was_taken(self, manifest: Manifest) -> bool:
        """Return whether `note_taken` was called with the manifest last; raise ImageError."""
        try:
            with self.store.open(self.name + _TAKEN) as found:
                return found.manifest.forward_state == _identity(manifest)
        except UnknownImageError:
            return False

    def forget_taken(self) -> None:
        """Take `note_taken` back; raise ImageError."""
        with suppress(UnknownImageError):
            self.store.remove(self.name + _TAKEN)


def _identity(manifest: Manifest) -> bytes:
    return f"{manifest.generation} {manifest.sequence} {manifest.created!r}".encode()


def _end_earlier(target: Session, images: _Images, device: int) -> None:
    """Fill the new session from the image of a handover that was made before."""
    try:
        found = images.open()
    except UnknownImageError:
        raise MigrationError(
            f"there is neither a session {images.source!r} nor an image {images.name!r} of its handover"
        ) from None
    with found:
        if not images.was_taken(found.manifest):
            raise MigrationError(
                f"there is no session {images.source!r}. Image {images.name!r} may be older than what its program went "
                f"on to, here or after a migration; to begin with it all the same: mpsguard run --image {images.name}"
            )
        restore(target, found, device=device)
    images.forget_taken()


class _Migration:
    """One migration, from its first round to the new session's first publication."""

    def __init__(
        self, moving: Session, target: Session, incoming: IncomingMemory, images: _Images, deadline: float
    ) -> None:
        self._moving = moving
        self._target = target
        self._incoming = incoming
        self._images = images
        self._deadline = deadline

    def run(self, limits: MigrationLimits) -> None:
        if not self._has_writer():
            raise MigrationError(f"{self._moving.name!r} has no program that runs: start it, or go on from its session")
        try:
            page = self._moving.open(REGION)
        except UnknownRegionError:
            raise MigrationError(
                f"the program of {self._moving.name!r} takes no checkpoints: it has not called checkpoints.of yet"
            ) from None
        with page:
            made: list[CopyRound] = []
            step = NextStep.COPY
            while step is NextStep.COPY:
                made.append(self._round(page.fds[0]))
                step = next_step(made, limits)
            if step is NextStep.GIVE_UP:
                raise MigrationError(f"after {len(made)} rounds the last one took {made[-1].took:.3g} s: {limits}")
            self._ask(page.fds[0], handover=True)
            self._load()
            self._incoming.give_to(self._target)
            self._take_over(page.fds[0])
            self._release()
            self._target.publish(self._manifest.forward_state)
            self._incoming.keep_mapped(self._target)
            checkpoint_requests.tell_moved(page.fds[0], self._manifest.sequence)
            with suppress(ImageError):
                self._images.forget_taken()

    def _has_writer(self) -> bool:
        try:
            return self._moving.has_writer()
        except BadRequestError:
            # The guard is an older one: the writer's silence tells.
            return True

    def _round(self, page: int) -> CopyRound:
        began = time.monotonic()
        self._ask(page, handover=False)
        return CopyRound(self._load(), time.monotonic() - began)

    def _load(self) -> int:
        with self._images.open() as image:
            # Before anything is handed over: behind it, the program could go on nowhere.
            if (size := len(image.manifest.forward_state)) > self._target.capacity:
                raise MigrationError(f"{size} bytes of state: receive with capacity={size} or more")
            return self._incoming.update(image)

    def _ask(self, page: int, *, handover: bool) -> None:
        """Return when the writer has committed the image; with ``handover``, and stands still since its cut."""
        asked = time.time()
        if handover:
            checkpoint_requests.begin_handover(page)
        self._moving.request_checkpoint(self._images.name, handover=handover)
        wanted = HELD if handover else "committed"

        def is_there() -> bool:
            outcome = self._told(page, asked)
            if outcome is not None and _is_state(outcome, wanted):
                return True
            if self._moving.is_over:
                raise MigrationError(f"the program of {self._moving.name!r} has ended, or another one writes it now")
            return False

        if not _until(is_there, self._deadline):
            told = self._told(page, asked)
            said = "nothing of it" if told is None else told.state
            raise MigrationError(
                f"the program of {self._moving.name!r} has not taken checkpoint {self._images.name!r} within "
                f"{self._deadline:g} s, and says {said}; it takes one when it publishes"
            )

    def _told(self, page: int, since: float) -> CheckpointOutcome | None:
        """Return what the writer told last of the image of the rounds, at ``since`` or later."""
        # Both: a program with an older mpsguard tells of its last checkpoint alone.
        found = [each for each in checkpoint_requests.read_outcomes(page) if each is not None]
        of_rounds = [each for each in found if each.image == self._images.name and each.at >= since]
        return max(of_rounds, key=lambda each: each.at, default=None)

    def _take_over(self, page: int) -> None:
        sequence = self._manifest.sequence
        self._moving.report_ready()
        checkpoint_requests.offer(page, sequence)
        self._wait_for_promotion(page)
        state = self._moving.latest()
        if state is None or state.sequence != sequence:
            # It went on, and ended afterwards: what this process has is older.
            raise MigrationError(f"{self._moving.name!r} has published since the cut, and has no writer now")

    @property
    def _manifest(self) -> Manifest:
        manifest = self._incoming.manifest
        assert manifest is not None
        return manifest

    def _wait_for_promotion(self, page: int) -> None:
        due, left = time.monotonic() + self._deadline, None
        while not self._moving.wait_for_promotion(_GLANCE):
            now, outcome = time.monotonic(), self._told(page, 0.0)
            went_on = outcome is not None and outcome.state == "committed"
            if went_on or now > due:
                raise MigrationError(f"the writer of {self._moving.name!r} did not wait for this process, and goes on")
            # The vault's word, which waits for a guard that restarts; it may be this process that is promoted just now.
            if self._moving.is_over and self._has_writer():
                left = now if left is None else left
                if now - left > _PROMOTED:
                    raise MigrationError(f"the writer of {self._moving.name!r} has left, and another standby goes on")

    def _release(self) -> None:
        """Release the old session, which nothing can publish in any more; raise MigrationError."""
        # Without it a receiver that is killed behind the release leaves an image to be begun with by hand.
        with suppress(ImageError):
            self._images.note_taken(self._manifest)
        try:
            if not _until(self._is_released, _RELEASE):
                raise MigrationError(f"session {self._moving.name!r} is held by another process; it is as it was")
        except BaseException:
            with suppress(ImageError):
                self._images.forget_taken()
            raise

    def _is_released(self) -> bool:
        try:
            self._moving.release()
        except LeaseHeldError:
            return False
        return True


def _is_state(outcome: CheckpointOutcome, wanted: str) -> bool:
    """Return whether the writer says so; raise MigrationError if it has refused."""
    if outcome.state.startswith("refused"):
        raise MigrationError(f"the writer's checkpoint: {outcome.state}")
    return outcome.state == wanted


def _until(is_true: Callable[[], bool], seconds: float) -> bool:
    due = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > due:
            return False
        time.sleep(_LOOK)
    return True
