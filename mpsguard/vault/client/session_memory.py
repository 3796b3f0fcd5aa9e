"""The memory of a session as this process has it mapped, and what observes its changes."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from mpsguard.vault.client.region import Writing


@dataclass(frozen=True)
class MappedAhead:
    """A writable mapping that waits for `client.mapped.attach` to take it; until then its owner unmaps it."""

    va: int
    sizes: tuple[int, ...]
    """Bytes of each chunk, back to back from ``va`` on."""
    gpu: str | None
    """UUID of the GPU that has the memory; None: host memory."""
    undo: ExitStack
    """Unmaps it, and frees the addresses."""

    def is_of(self, va: int, sizes: tuple[int, ...], gpu: str | None) -> bool:
        """Return whether a region is what was mapped."""
        return (self.va, self.sizes, self.gpu) == (va, sizes, gpu)


class MappedMemory(Protocol):
    """A region that this process has mapped: `mpsguard.vault.client.mapped.Memory`."""

    va: int
    size: int
    backend: Any


class MemoryObserver(Protocol):
    """Learns of each change of a session's memory before or as it is made: the session's checkpoints."""

    def at_publish(self) -> None:
        """Act on a publication, which has just been made."""

    def announce(self, name: str, whole: int, offset: int, size: int) -> None:
        """Return when these bytes of a region, which has ``whole`` bytes, may be written; raise ValueError."""

    def write_begins(self) -> None:
        """Note that a `writing` block was entered."""

    def write_ends(self) -> None:
        """Note that a `writing` block was left."""

    def regions_changed(self, name: str | None, *, new: bool = False) -> None:
        """Note that a region was made (``new``), or is sealed, changed or released; all of them, with None."""

    def unmapped(self, name: str) -> None:
        """Note that this process unmaps a region."""

    def let_go(self) -> bool:
        """Let go of all regions, so that they can be released.

        Returns:
            Whether a process was killed for it: the vault may hear of that later than this process.
        """

    def released(self, name: str) -> None:
        """Note that a region was released."""

    def stop(self) -> None:
        """Begin to end, as the session is closed, without waiting. Then `close`."""

    def close(self) -> None:
        """End, and wait for it."""


Observer = TypeVar("Observer", bound=MemoryObserver)


class SessionMemory:
    """What this process has mapped of a session. Owns what was mapped ahead, and the observer if there is one."""

    def __init__(self) -> None:
        self.mapped: dict[str, MappedMemory] = {}
        """The regions that this process has mapped by `client.mapped` or `client.cuda`, by name."""
        self._ahead: dict[str, MappedAhead] = {}
        self._observer: MemoryObserver | None = None
        self._lock = threading.Lock()

    def observed_by(self, kind: type[Observer], make: Callable[[], Observer]) -> Observer:
        """Return the observer, which the first call makes; it is the only one, and of this ``kind``."""
        with self._lock:
            observer = self._observer
            if observer is None:
                observer = self._observer = make()
        assert isinstance(observer, kind)
        return observer

    # --- what is mapped

    def note_mapped(self, name: str, memory: MappedMemory) -> None:
        """Note that this process has mapped a region."""
        self.mapped[name] = memory

    def note_unmapped(self, name: str) -> None:
        """Note that this process unmaps a region."""
        self.mapped.pop(name, None)
        if self._observer is not None:
            self._observer.unmapped(name)

    def keep_ahead(self, name: str, mapping: MappedAhead) -> None:
        """Own what this process has mapped of a region before it attaches to it, until `take_ahead` or `close`."""
        self._ahead[name] = mapping

    def take_ahead(self, name: str) -> MappedAhead | None:
        """Return what `keep_ahead` has taken of a region, owned by the caller; None: nothing."""
        return self._ahead.pop(name, None)

    # --- what the session does

    def published(self) -> None:
        """Note a publication."""
        if self._observer is not None:
            self._observer.at_publish()

    def announce(self, name: str, whole: int, offset: int, size: int) -> Writing:
        """See `Region.writing`."""
        observer = self._observer
        if observer is None:
            return Writing()
        observer.announce(name, whole, offset, size)
        return Writing(observer.write_begins, observer.write_ends)

    def changed(self, name: str, *, new: bool = False) -> None:
        """Note that a region was made (``new``), or is sealed or changed."""
        if self._observer is not None:
            self._observer.regions_changed(name, new=new)

    def let_go(self, name: str | None) -> bool:
        """Prepare for the release of a region, or of all: see `MemoryObserver.let_go`."""
        if self._observer is None:
            return False
        killed = self._observer.let_go()
        self._observer.regions_changed(name)
        return killed

    def released(self, name: str | None) -> None:
        """Note that a region was released, or the session."""
        for each in list(self._ahead) if name is None else [name]:
            # A later region of that name is another one, also if it has the same size and address.
            if (ahead := self.take_ahead(each)) is not None:
                ahead.undo.close()
        if self._observer is not None and name is not None:
            self._observer.released(name)

    # --- close

    def stop(self) -> None:
        """Begin to end the observer, without waiting; not in a forked child. Then `end_observer`."""
        if self._observer is not None:
            self._observer.stop()

    def end_observer(self) -> None:
        """End the observer, and wait for it; not in a forked child."""
        if self._observer is not None:
            self._observer.close()

    def close(self) -> None:
        """Unmap what was mapped ahead."""
        while self._ahead:
            self._ahead.popitem()[1].undo.close()
