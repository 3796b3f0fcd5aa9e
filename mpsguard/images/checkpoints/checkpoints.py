# long: one lock over the program's calls, the cut, and what the copier says
"""Checkpoints of a session while its program runs: the writer's side."""

import os
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from mpsguard.images.checkpoints import handover
from mpsguard.images.checkpoints.announcements import Announcements, UnderWay, protect
from mpsguard.images.checkpoints.checkpoint import Checkpoint, CheckpointState, RunningCheckpoint, TriedCheckpoint
from mpsguard.images.checkpoints.copier_process import CopierGoneError, CopierProcess
from mpsguard.images.checkpoints.errors import CheckpointBusyError, CheckpointError, CheckpointRefusedError
from mpsguard.images.checkpoints.messages import CheckpointRefusal, CutPlan, Ended, Setup
from mpsguard.images.checkpoints.options import CheckpointOptions
from mpsguard.images.checkpoints.piece_table import CopierProgress, NextTable, PieceTableError
from mpsguard.images.checkpoints.pieces import PIECE, touched
from mpsguard.images.checkpoints.request_page import RequestPage
from mpsguard.images.checkpoints.session_regions import OWN_PREFIX, SessionRegions
from mpsguard.images.checkpoints.sources import MOST_ASIDE, SLICE
from mpsguard.images.checkpoints.spare import SpareSpace
from mpsguard.images.checkpoints.writing_session import WritingSession
from mpsguard.images.store.manifest import program_name
from mpsguard.vault.wire.region import LeaseRole, check_name

_START: Final = 60.0
"""Seconds for a copier to be ready: it makes a CUDA context and pins its memory."""
_START_AHEAD: Final = 0.1
"""Seconds of `Checkpoints.start` for what is sealed."""
_LEAVING: Final = 2.0
"""Seconds for a copier to leave the session by itself."""


class Checkpoints:
    """Takes the checkpoints of one session. Safe for use by several threads; returned by `checkpoints.of`."""

    def __init__(self, session: WritingSession, options: CheckpointOptions) -> None:
        """Start the copier; raise OSError if that is not possible."""
        self._session = session
        self._options = options
        self._lock = threading.RLock()
        self._page = RequestPage(session)
        self._spare = SpareSpace(options.spare // PIECE)
        self._regions = SessionRegions(session, self._spare.cuda_source)
        self._announcements = Announcements()
        self._next_table = NextTable()
        self._copier: CopierProcess | None = None
        self._leaving: list[CopierProcess] = []
        self._running: RunningCheckpoint | None = None
        self._armed: Checkpoint | None = None
        self._tried: TriedCheckpoint | None = None
        """What the last publication tried to take."""
        self._interval: tuple[float, str] | None = None
        self._due = 0.0
        self._serial = 0
        self._open_writes = 0
        self.waited = 0.0
        """Seconds that announcements have held the program so far."""
        self.last_cut = 0.0
        """Seconds that the last cut took."""

    # --- what the program asks for

    def take(self, image: str) -> Checkpoint:
        """Take a checkpoint now, of the memory as it is and the state that was published last.

        To be called between two steps: no write to a region may be under way, in no thread and by no other process.

        Raises:
            CheckpointBusyError: another one is under way, or a `writing` block is open.
            CheckpointError: nothing was published yet, a region cannot be read here, or another process is the writer.
            CheckpointRefusedError: the copier cannot be started.
            VaultError: the session cannot be asked for its regions.
            CudaError: the GPU has failed, or has no room for the digests.
        """
        with self._lock:
            checkpoint = Checkpoint(image, self)
            self._check_free()
            self._page.open()
            try:
                self._cut(checkpoint, self._wait_for_copier())
            except CopierGoneError as error:
                raise CheckpointRefusedError(CheckpointRefusal.COPIER, str(error)) from None
            return checkpoint

    def arm(self, image: str) -> Checkpoint:
        """Have a checkpoint taken with the next publication; raise CheckpointBusyError."""
        with self._lock:
            if self._running is not None or self._armed is not None:
                raise CheckpointBusyError("another checkpoint of this session is under way")
            self._armed = Checkpoint(image, self)
            return self._armed

    def every(self, seconds: float, image: str) -> None:
        """Take a checkpoint with the first publication after each ``seconds``; 0 ends that.

        One that is still under way when the next is due delays it.
        """
        check_name("image", image)
        with self._lock:
            self._interval = (seconds, image) if seconds > 0 else None
            self._due = time.monotonic() + seconds

    def at_publish(self) -> None:
        """Take the checkpoint that is due, if there is one: called by `Session.publish` after each publication.

        A checkpoint that cannot be taken is refused, and the program goes on.

        Raises:
            HandoverLostError: the session was handed over, and nothing goes on with it.
        """
        if self._running is None and self._armed is None and self._interval is None and not self._page.is_new:
            return
        with self._lock:
            self._absorb()
            if self._running is not None or self._open_writes:
                return
            if self._armed is None:
                self._armed = self._wanted_now()
            if self._armed is not None:
                self._try_armed(self._armed)

    def announce(self, name: str, whole: int, offset: int, size: int) -> None:
        """Return when these bytes of a region, which has ``whole`` bytes, may be written; see `Region.writing`.

        Raises:
            ValueError: they do not lie in the region.
        """
        numbers = touched(offset, size, whole)
        with self._lock:
            self._announcements.announce(name, numbers)
            running = self._running
            if running is None:
                return
            span = running.under_way.spans.get(name)
            if span is not None and span.size == whole:
                self._protect(running, range(span.first + numbers.start, span.first + numbers.stop), name)

    def write_begins(self) -> None:
        """Note that a `writing` block was entered: no cut is taken before it is left."""
        with self._lock:
            self._open_writes += 1

    def write_ends(self) -> None:
        """Note that a `writing` block was left."""
        with self._lock:
            self._open_writes -= 1

    def pump(self, checkpoint: Checkpoint, timeout: float | None) -> None:
        """See `Checkpoint.wait`."""
        due = time.monotonic() + (self._options.deadline if timeout is None else timeout)
        while checkpoint.is_under_way and (left := due - time.monotonic()) > 0:
            with self._lock:
                self._absorb()
                running = self._running
                copier = self._copier if running is not None and running.checkpoint is checkpoint else None
            if copier is not None:
                # Without the lock, so that other threads can announce and publish; in short, since one of them may
                # hear the copier's answer.
                copier.wait(min(left, 0.1))

    def progress(self, checkpoint: Checkpoint) -> CopierProgress | None:
        """See `Checkpoint.progress`."""
        with self._lock:
            running = self._running
            if running is None or running.checkpoint is not checkpoint:
                return None
            return running.under_way.table.progress()

    # --- the session changes

    def regions_changed(self, name: str | None, *, new: bool = False) -> None:
        """Note that a region was made (``new``), sealed, changed or released; all of them, with None."""
        if name is not None and name.startswith(OWN_PREFIX):
            # Such as the request page, which is made behind `start`: the next cut need not ask the vault for it.
            return
        with self._lock:
            self._regions.changed()
            if name is not None and new:
                self._announcements.forget(name)

    def released(self, name: str) -> None:
        """Note that a region was released: its memory is not kept for the next checkpoint."""
        with self._lock:
            self._regions.released(name)

    def unmapped(self, name: str) -> None:
        """Note that this process unmaps a region."""
        with self._lock:
            self._regions.unmapped(name)

    def let_go(self) -> bool:
        """Have all copiers leave the session, so that a region or the session can be released.

        Returns:
            Whether one was killed: the vault may hear of that later than this process.
        """
        with self._lock:
            self._dismiss_copier()
            copiers, self._leaving = self._leaving, []
            self._leaving = [each for each in copiers if not each.reap(_LEAVING)]
            killed = any(each.was_killed for each in copiers)
            if self._running is not None:
                self._on_ended(Ended(self._running.serial, CheckpointRefusal.CANCELLED, "what it copies is released"))
            return killed

    def stop(self) -> None:
        """Have the copier end, without waiting for it; a checkpoint that is under way is refused. Then `close`."""
        with self._lock:
            if self._running is not None:
                self._end_copier(CheckpointRefusal.CANCELLED, "the session is closed")
            else:
                self._dismiss_copier()
            if self._armed is not None:
                self._armed.state = CheckpointState.REFUSED
                self._armed = None

    def close(self) -> None:
        """End the copier, and wait for its end. Safe to call twice."""
        self.stop()
        with self._lock:
            for copier in self._leaving:
                copier.reap(_LEAVING)
            self._leaving = []
            self._next_table.close()
            self._regions.close()
            self._spare.close()
            self._page.close()

    # --- the cut

    def _check_free(self) -> None:
        self._absorb()
        if self._running is not None or self._armed is not None:
            raise CheckpointBusyError("another checkpoint of this session is under way")
        if self._open_writes:
            raise CheckpointBusyError(f"{self._open_writes} blocks of `writing` are open")

    def _wanted_now(self) -> Checkpoint | None:
        if (request := self._page.take()) is not None:
            checkpoint = Checkpoint(request.image, self)
            checkpoint.is_requested = True
            checkpoint.hands_over = request.handover
            return checkpoint
        if self._interval is not None and time.monotonic() >= self._due:
            self._due = time.monotonic() + self._interval[0]
            return Checkpoint(self._interval[1], self)
        return None

    def _try_armed(self, checkpoint: Checkpoint) -> None:
        try:
            copier = self._copier_now()
            if not copier.is_ready:
                return
            self._tried = TriedCheckpoint.again(self._tried, checkpoint)
            if self._regions.undigested > SLICE and not self._tried.is_late:
                self._regions.digest_some_sealed(self._tried.to_spare)
                return
            self._cut(checkpoint, copier)
            if checkpoint.hands_over:
                self._hold(checkpoint)
        except handover.HandoverLostError:
            raise
        except Exception as error:
            # Of any kind, the driver's included: the program that publishes has no part in it, and goes on.
            gone = isinstance(error, CopierGoneError)
            self._refuse(checkpoint, CheckpointRefusal.COPIER if gone else CheckpointRefusal.MEMORY, error)

    def _hold(self, checkpoint: Checkpoint) -> None:
        state = self._session.latest()
        if state is not None:
            pump = partial(self.pump, checkpoint)
            handover.hold(checkpoint, self._page, state.sequence, pump, self._session.hand_over)

    def _refuse(self, checkpoint: Checkpoint, refusal: CheckpointRefusal, error: Exception) -> None:
        self._armed = None
        checkpoint.ended = Ended(self._serial, refusal, str(error))
        checkpoint.state = CheckpointState.REFUSED
        self._page.tell(checkpoint)

    def _cut(self, checkpoint: Checkpoint, copier: CopierProcess) -> None:
        began = time.monotonic()
        state = self._session.latest()
        # Behind `latest`, by which a writer that was fenced off learns of it.
        generation = self._session.generation
        if self._session.role is not LeaseRole.WRITER:
            raise CheckpointError(f"this process is not the writer of {self._session.name!r}: {self._session.role}")
        if state is None:
            raise CheckpointError("nothing was published yet: an image is a session's memory with its forward state")
        found = self._regions.spans()
        pieces = self._regions.pieces
        self._serial += 1
        try:
            table, table_fd = self._next_table.take(pieces, self._serial)
        except PieceTableError as error:
            raise CheckpointError(str(error)) from None
        try:
            self._regions.digest(table.digests)
            plan = CutPlan(
                self._serial,
                checkpoint.image,
                generation,
                state.generation,
                state.sequence,
                state.state,
                self._regions.records(),
                pieces,
                self._announcements.cut(found),
            )
            copier.begin(plan, table_fd)
        except BaseException:
            table.close()
            self._announcements.reset()
            raise
        finally:
            os.close(table_fd)
        self._armed = None
        checkpoint.state = CheckpointState.UNDER_WAY
        checkpoint.tries += 1
        under_way = UnderWay(table, {span.name: span for span in found})
        self._running = RunningCheckpoint(checkpoint, self._serial, under_way, began, self._options.patience)
        self._page.tell(checkpoint)
        self.last_cut = time.monotonic() - began

    # --- while one is under way

    def _protect(self, running: RunningCheckpoint, numbers: range, name: str) -> None:
        began = time.monotonic()
        source = self._regions.source_of(name)
        copy = None if source is None else self._spare.copy_from(source, running.under_way.spans[name].first)

        def wait(pending: list[int]) -> None:
            table = running.under_way.table
            due = began + running.patience
            while self._running is running and not all(map(table.is_copied, pending)):
                left = due - time.monotonic()
                if left <= 0:
                    why = f"it held the program for {self._options.patience:g} s"
                    self._end_copier(CheckpointRefusal.CANCELLED, why)
                    return
                if self._copier is not None:
                    self._copier.wait_for_pieces(left)
                self._absorb()

        protect(running.under_way, numbers, slots=self._spare.slots, copy=copy, most=MOST_ASIDE, wait=wait)
        took = time.monotonic() - began
        running.patience -= took
        self.waited += took

    def _absorb(self) -> None:
        """Handle what the copier has said, without waiting."""
        copier = self._copier
        if copier is None:
            return
        try:
            self._hear(copier)
        except CopierGoneError as error:
            if self._armed is not None and not copier.is_ready:
                # The next one would end like this one, and so on with each publication.
                self._refuse(self._armed, CheckpointRefusal.COPIER, error)
            return
        running = self._running
        if running is not None and time.monotonic() - running.began > self._options.deadline:
            where = running.under_way.table.progress()
            self._end_copier(CheckpointRefusal.CANCELLED, f"it took more than {self._options.deadline:g} s: {where}")

    def _on_ended(self, ended: Ended) -> None:
        running = self._running
        if running is None or running.serial != ended.serial:
            return
        self._running = None
        self._spare.slots.empty()
        table = running.under_way.table
        table.close()
        self._next_table.prepare(table.pieces, self._serial + 1)
        checkpoint = running.checkpoint
        checkpoint.ended = ended
        if ended.refusal is None:
            checkpoint.state = CheckpointState.COMMITTED
        elif ended.refusal is CheckpointRefusal.TORN and checkpoint.tries <= self._options.retries:
            checkpoint.state = CheckpointState.ARMED
            self._armed = checkpoint
        else:
            checkpoint.state = CheckpointState.REFUSED
        self._page.tell(checkpoint)

    # --- the copier

    def _hear(self, copier: CopierProcess) -> None:
        """Handle what the copier has said, without waiting; raise CopierGoneError if that was its end."""
        try:
            for ended in copier.messages():
                self._on_ended(ended)
        except CopierGoneError as error:
            self._end_copier(CheckpointRefusal.COPIER, str(error))
            raise

    def _copier_now(self) -> CopierProcess:
        """Return the copier, which may not be ready yet; start it if there is none.

        Raises:
            OSError: it cannot be started.
        """
        if self._copier is None:
            options = self._options
            records = self._regions.records()
            for record in records:
                # Ahead of the first cut: on a GPU this loads the kernel.
                self._regions.source(record)
            self._next_table.prepare(self._regions.pieces, self._serial + 1)
            setup = Setup(
                self._session.name,
                self._session.owner,
                str(Path(self._session.socket).absolute()),
                str(Path(options.store).absolute()),
                options.quota,
                options.buffers,
                program_name(),
                *self._spare.prepare(records, self._regions.source),
                tuple(sorted({record.layout.gpu for record in records if record.layout.gpu is not None})),
            )
            self._leaving = [each for each in self._leaving if not each.has_ended]
            self._copier = CopierProcess(setup, self._spare.fd)
        return self._copier

    def start(self) -> None:
        """Prepare the first checkpoint; a failure shows there.

        Starts the copier, allocates the spare memory, and digests, for up to 0.1 s, what is sealed. To be called when
        the regions are made.
        """
        # Of any kind, the driver's included.
        with self._lock, suppress(Exception):
            self._page.open()
            self._copier_now()
            self._regions.digest_some_sealed(_START_AHEAD)

    @property
    def is_ready(self) -> bool:
        """Whether the copier is there. Then a checkpoint begins with the next publication; see `start`.

        Later if much was sealed that has no digest yet: that is digested with publications before.
        """
        with self._lock:
            self._absorb()
            return self._copier is not None and self._copier.is_ready

    def _wait_for_copier(self) -> CopierProcess:
        """Return the copier once it is ready; raise CheckpointRefusedError, or CopierGoneError if it has ended."""
        due = time.monotonic() + _START
        try:
            copier = self._copier_now()
        except OSError as error:
            raise CheckpointRefusedError(CheckpointRefusal.COPIER, str(error)) from None
        self._hear(copier)
        while not copier.is_ready:
            left = due - time.monotonic()
            if left <= 0:
                self._end_copier(CheckpointRefusal.COPIER, "not ready")
                why = f"the copier was not ready within {_START:g} s"
                raise CheckpointRefusedError(CheckpointRefusal.COPIER, why)
            copier.wait(left)
            self._hear(copier)
        return copier

    def _dismiss_copier(self) -> None:
        """Have the copier end by itself. Nothing here waits for it."""
        # Not by SIGKILL: it gives its lease back at once, and then what takes long to give back, its pinned memory. The
        # kernel would do it the other way round.
        copier, self._copier = self._copier, None
        if copier is not None:
            copier.close()
            self._leaving.append(copier)

    def _end_copier(self, refusal: CheckpointRefusal, why: str) -> None:
        """Kill the copier, and refuse what is under way. Nothing here waits for it."""
        copier, self._copier = self._copier, None
        if copier is not None:
            copier.kill()
            self._leaving.append(copier)
        if self._running is not None:
            self._on_ended(Ended(self._running.serial, refusal, why))
