"""The copier's process: it follows its writer's messages, one checkpoint at a time, and ends when the writer does."""

import os
import select
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from mpsguard.images.checkpoints import messages
from mpsguard.images.checkpoints.messages import Begin, CheckpointRefusal, CopierReady, CutPlan, Ended, Setup
from mpsguard.images.checkpoints.piece_table import DIGEST, CopierStage, PieceTable
from mpsguard.images.checkpoints.pieces import PIECE, span_of, spans
from mpsguard.images.copier.opened_regions import OpenedRegions, RegionChangedError
from mpsguard.images.copier.run import CheckpointRun, RunMemory, RunStoppedError
from mpsguard.images.copier.tensors import tensor_images
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.image import HeldPieces
from mpsguard.images.store.manifest import Manifest, RegionImage
from mpsguard.images.store.store import ImageStore
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.sockets import seqpacket
from mpsguard.vault.client.session import Session
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import LeaseRole

_LEAVING: Final = 5.0
"""Seconds to give everything back after the writer's end; then the process ends as it is."""
_SWITCH: Final = 0.0003
"""Seconds that a thread keeps the interpreter while another one wants it; a copy of 32 MiB takes 0.6 ms."""
_SETUP: Final = 30.0
"""Seconds for the writer's first message."""


_AT_ONCE: Final = 128
"""Digests that are compared at once."""


class CopierProtocolError(Exception):
    """A message that does not belong there."""


class _Writer:
    """The socket to the writer, its process, and the event that tells it of copied pieces."""

    def __init__(self, sock: socket.socket, event: int) -> None:
        """Use the descriptors; raise ProcessLookupError if the writer has ended."""
        self._socket = sock
        self._event = event
        # A child that the writer forked keeps the socket open behind the writer's end.
        self._process = os.pidfd_open(seqpacket.peer(sock).pid)
        if os.getppid() != seqpacket.peer(sock).pid:
            raise ProcessLookupError

    def receive(self, timeout: float | None) -> tuple[Setup | Begin | None, tuple[int, ...]]:
        """Return the next message and its descriptors; None at the end of the writer, or after ``timeout`` seconds."""
        if not self._heard(timeout):
            return None, ()
        try:
            packet = seqpacket.receive(self._socket, messages.MAX_PACKET)
        except ConnectionError:
            return None, ()
        if packet.end or not packet.data:
            close_all(packet.fds)
            return None, ()
        return messages.decode_for_copier(packet.data), packet.fds

    def _heard(self, timeout: float | None) -> bool:
        """Wait for a message or the end of the socket; return False if the process has ended, or none came."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(self._process, select.POLLIN)
        found = {fd for fd, _ in poll.poll(None if timeout is None else timeout * 1e3)}
        return self._socket.fileno() in found and self._process not in found

    def send(self, message: CopierReady | Ended) -> None:
        """Send a message, if the writer is still there."""
        with suppress(OSError):
            seqpacket.send(self._socket, messages.encode(message))

    def on_copied(self) -> None:
        """Wake the writer if it waits for pieces."""
        with suppress(BlockingIOError):
            os.eventfd_write(self._event, 1)

    def watch(self, run: CheckpointRun, over: int) -> None:
        """Stop a run when the writer ends; return then, or when ``over``, an eventfd, says that the run is over."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        poll.register(self._process, select.POLLIN)
        poll.register(over, select.POLLIN)
        if any(fd != over for fd, _ in poll.poll()):
            run.stop()


class CopierMain:
    """One copier, from its setup to its end."""

    def __init__(self, writer: _Writer, setup: Setup, session: Session, memory: OpenedRegions) -> None:
        """Use what the caller owns."""
        self._writer = writer
        self._setup = setup
        self._session = session
        self._memory = memory
        self._store: ImageStore | None = None
        self._before: dict[int, bytes] = {}
        """Digests at the last cut, by region id."""
        self._held: HeldPieces | None = None
        """The pieces of the last image: most of a session is the same at the next cut."""

    def serve(self) -> None:
        """Take checkpoints until the writer ends."""
        self._writer.send(CopierReady())
        while True:
            message, fds = self._writer.receive(None)
            with ExitStack() as undo:
                undo.callback(close_all, fds)
                if message is None:
                    return
                if not isinstance(message, Begin) or len(fds) != (1 if message.plan else 2):
                    raise CopierProtocolError(f"{type(message).__name__} with {len(fds)} descriptors")
                began = time.monotonic()
                plan = messages.plan_of(message, fds)
                table = PieceTable.open(fds[-1], plan.pieces, plan.serial)
                undo.callback(table.close)
                self._writer.send(self._checkpoint(plan, table, began))

    def _checkpoint(self, plan: CutPlan, table: PieceTable, began: float) -> Ended:
        table.enter(CopierStage.OPENING)
        unannounced = self._unannounced(plan, table)

        def refused(refusal: CheckpointRefusal, message: str) -> Ended:
            return Ended(plan.serial, refusal, message, plan.pieces, unannounced=unannounced)

        try:
            store = self._opened_store()
        except ImageError as error:
            return refused(CheckpointRefusal.STORE, str(error))
        try:
            memory = self._memory.open(plan.regions)
        except (VaultError, RegionChangedError) as error:
            return refused(CheckpointRefusal.MEMORY, str(error))
        except Exception as error:
            # CudaError cannot be named without cuda-bindings.
            return refused(CheckpointRefusal.MEMORY, f"{type(error).__name__}: {error}")
        try:
            with store.begin(plan.image, held=self._held) as writer:
                run = CheckpointRun(table, memory, writer, self._writer.on_copied)
                table.enter(CopierStage.COPYING)
                self._watched(run)
                table.enter(CopierStage.CHECKING)
                schedule = run.schedule
                if schedule.torn is not None:
                    return refused(CheckpointRefusal.TORN, _torn(memory, schedule.torn))
                if self._is_stale(plan):
                    return refused(CheckpointRefusal.STALE, "the writer was fenced off meanwhile")
                manifest = self._manifest(plan, run, memory)
                table.enter(CopierStage.COMMITTING)
                self._hold(writer.commit_held(manifest))
                table.enter(CopierStage.ENDING)
                now = time.monotonic()
                return Ended(
                    plan.serial,
                    None,
                    "",
                    plan.pieces,
                    schedule.copied,
                    writer.written,
                    unannounced,
                    (run.drained_at or now) - began,
                    now - began,
                )
        except ImageError as error:
            return refused(CheckpointRefusal.STORE, str(error))
        except RunStoppedError:
            return refused(CheckpointRefusal.CANCELLED, "the writer has ended")
        except Exception as error:
            return refused(CheckpointRefusal.MEMORY, f"{type(error).__name__}: {error}")

    def _hold(self, held: HeldPieces | None) -> None:
        before, self._held = self._held, held
        if before is not None:
            before.close()

    def _opened_store(self) -> ImageStore:
        """Return the store, opened anew after it was removed; raise ImageError, this time."""
        if self._store is not None and self._store.is_gone:
            self._close_store()
        if self._store is None:
            self._store = ImageStore(Path(self._setup.store), quota=self._setup.quota)
        return self._store

    def _close_store(self) -> None:
        self._hold(None)
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def close(self) -> None:
        """Close the store, and let the last image's pieces go; safe to call twice."""
        self._close_store()

    def _watched(self, run: CheckpointRun) -> None:
        over = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            watcher = threading.Thread(target=self._writer.watch, args=(run, over), daemon=True)
            watcher.start()
            try:
                run.work()
            finally:
                os.eventfd_write(over, 1)
                watcher.join()
        finally:
            os.close(over)

    def _is_stale(self, plan: CutPlan) -> bool:
        try:
            self._session.latest()
        except VaultError:
            return True
        return self._session.generation != plan.writer_generation

    def _unannounced(self, plan: CutPlan, table: PieceTable) -> int:
        """Count the pieces that changed since the last cut without an announcement, and remember the digests."""
        found, first, now = 0, 0, dict[int, bytes]()
        for record in plan.regions:
            count = -(-record.layout.size // PIECE)
            digests = now[record.id] = bytes(table.digests[first * DIGEST : (first + count) * DIGEST])
            before = self._before.get(record.id)
            if before is not None:
                found += sum(not plan.dirty[first + index] for index in _differing(before, digests))
            first += count
        self._before = now
        return found

    def _manifest(self, plan: CutPlan, run: CheckpointRun, memory: RunMemory) -> Manifest:
        numbered = spans((record.name, record.layout.size) for record in plan.regions)
        return Manifest.made_now(
            self._setup.session,
            tuple(
                RegionImage(
                    record.name,
                    record.layout.sizes,
                    run.stored_digests(span),
                    record.layout.va,
                    record.metadata,
                    record.sealed,
                    record.layout.gpu,
                )
                for record, span in zip(plan.regions, numbered, strict=True)
            ),
            tensors=tensor_images(run, memory),
            generation=plan.generation,
            sequence=plan.sequence,
            forward_state=plan.forward_state,
            program=self._setup.program,
        )


def _differing(before: bytes, now: bytes) -> Iterator[int]:
    """Return the indices at which two sequences of digests differ. Most are equal: they are compared many at once."""
    for start in range(0, len(now), _AT_ONCE * DIGEST):
        stop = min(start + _AT_ONCE * DIGEST, len(now))
        if before[start:stop] != now[start:stop]:
            for at in range(start, stop, DIGEST):
                if before[at : at + DIGEST] != now[at : at + DIGEST]:
                    yield at // DIGEST


def _torn(memory: RunMemory, number: int) -> str:
    span = span_of([span for span, _ in memory.regions], number)
    offset, size = span.bounds(number)
    return (
        f"region {span.name!r}, bytes {offset} to {offset + size}: written after the cut without `writing`, "
        "or while the cut was taken"
    )


def main(socket_fd: int, event: int) -> int:
    """Serve the writer at the other end of a socket; return the exit status."""
    # A thread that has a copy to start on the bus waits for at most so long for one that stores.
    sys.setswitchinterval(_SWITCH)
    try:
        writer = _Writer(socket.socket(fileno=socket_fd), event)
    except ProcessLookupError:
        return 0
    setup, fds = writer.receive(_SETUP)
    if not isinstance(setup, Setup):
        return 0 if setup is None else 2
    session = Session(setup.session, role=LeaseRole.READER, socket=setup.socket, owner=setup.owner)
    memory = OpenedRegions(session, setup, fds[0] if fds else None)
    try:
        memory.prepare(setup.gpus)
        memory.open_ahead()
        with closing(CopierMain(writer, setup, session, memory)) as copier:
            copier.serve()
    finally:
        # A driver call that hangs must not keep the session's lease: the process ends in any case.
        timer = threading.Timer(_LEAVING, os._exit, (1,))
        timer.daemon = True
        timer.start()
        session.close()
        memory.close()
        # Of a writer that is there no more; one that is removes it, too.
        with suppress(OSError, KeyError):
            Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"]).rmdir()
    return 0
