"""The lanes of one domain: one on which the work is, and, where standbys are wanted, another one on which they wait."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard.lanes.lane import Lane
from mpsguard.guard.model import LaneState
from mpsguard.linux.files.directory import replace_file
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.tasks import beside

_STRUCK: Final = 10.0
"""Seconds in which the server of a lane that was struck has said so: 3 s where clients of it were stopped (H200)."""


class _Chosen(msgspec.Struct, frozen=True):
    active: str
    """Name of the lane."""


class LaneSet:
    """Owns which of the lanes is the active one, on disk too: the next guard must not bring new work elsewhere."""

    def __init__(self, lanes: Sequence[Lane], path: Path) -> None:
        """``lanes``: one or two; ``path``: where the choice is remembered, if there is one to be made."""
        self.all = tuple(lanes)
        self._path = path
        self._moved = asyncio.Event()
        self._active = self.all[0]
        self._struck: dict[ProcessKey, float] = {}
        """The clients that were on a lane when a fault struck it, and until when this counts."""
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
        """Make that lane the active one; False if it is already, or there is none such. `save` is for the caller."""
        lane = self.named(name)
        if lane is None or lane is self._active:
            return False
        self._active = lane
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()
        return True

    def save(self) -> None:
        """Remember the active lane for the next guard; OSError, and that one brings new work where it was before."""
        replace_file(self._path, msgspec.json.encode(_Chosen(self._active.spec.name)))

    def strike(self, clients: Iterable[ProcessKey]) -> None:
        """A sign was seen that the lane of these clients will not live: whatever work they have ends with it."""
        now = time.monotonic()
        self._struck = {client: until for client, until in self._struck.items() if until > now}
        self._struck |= dict.fromkeys(clients, now + _STRUCK)

    def has_lost_its_work(self, client: ProcessKey, lane: Lane) -> bool:
        """Whether a client's work on that lane has ended, or is about to, by a fault that struck the lane.

        Its server may not have said so: before it does, it waits for clients that do not answer, stopped ones too.
        """
        return lane.report.state is LaneState.FAULT or self._struck.get(client, 0.0) > time.monotonic()

    async def admitting(self, choose: Callable[[], Lane]) -> None:
        """Wait until the lane that ``choose`` gives takes clients; asks again when the lanes change places."""
        while True:
            moved = self._moved
            async with beside(choose().admitting(), moved.wait()) as (ready, change):
                await asyncio.wait({ready, change}, return_when=asyncio.FIRST_COMPLETED)
                if ready.done() and moved is self._moved:
                    return

    def _remembered(self) -> Lane | None:
        try:
            return self.named(msgspec.json.decode(self._path.read_bytes(), type=_Chosen).active)
        except (OSError, msgspec.DecodeError):
            return None
