"""The lanes of one domain: one on which the work is, and, where standbys are wanted, another one on which they wait."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from mpsguard.linux import file_replacement
from mpsguard.mps.lane import Lane


class _Chosen(msgspec.Struct, frozen=True):
    active: str
    """Name of the lane."""


class Lanes:
    """Owns which of the lanes is the active one, on disk too: the next guard must not bring new work elsewhere."""

    def __init__(self, lanes: Sequence[Lane], path: Path) -> None:
        """``lanes``: one or two; ``path``: where the choice is remembered, if there is one to be made."""
        self.all = tuple(lanes)
        self._path = path
        self._moved = asyncio.Event()
        self._active = self.all[0]
        if self.spare is not None:
            self._active = self._remembered() or self._active

    @property
    def active(self) -> Lane:
        """Where new work is brought."""
        return self._active

    @property
    def spare(self) -> Lane | None:
        """Where standbys wait; None in a domain without any."""
        return next((lane for lane in self.all if lane is not self._active), None)

    def named(self, name: str) -> Lane | None:
        """The lane of that name."""
        return next((lane for lane in self.all if lane.spec.name == name), None)

    def move_to(self, name: str) -> bool:
        """Make that lane the active one; False if it is already, or there is none such."""
        lane = self.named(name)
        if lane is None or lane is self._active:
            return False
        self._active = lane
        file_replacement.replace(self._path, msgspec.json.encode(_Chosen(name)))
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        return True

    async def admitting(self, choose: Callable[[], Lane]) -> None:
        """Wait until the lane that ``choose`` gives takes clients; asks again when the lanes change places."""
        while True:
            moved = self._moved
            ready = asyncio.create_task(choose().admitting())
            change = asyncio.create_task(moved.wait())
            try:
                await asyncio.wait({ready, change}, return_when=asyncio.FIRST_COMPLETED)
                if ready.done() and moved is self._moved:
                    return
            finally:
                for task in (ready, change):
                    task.cancel()
                await asyncio.wait({ready, change})

    def _remembered(self) -> Lane | None:
        try:
            return self.named(msgspec.json.decode(self._path.read_bytes(), type=_Chosen).active)
        except (OSError, msgspec.DecodeError):
            return None
