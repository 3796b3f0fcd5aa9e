"""Earlier faults, as triage remembers them: their victims, their suspects, and the faults that no server noticed."""

from collections.abc import Iterator
from math import inf
from typing import Final, Self

from mpsguard.guard.incident import FaultClass, Ground, Incident
from mpsguard.guard.triage.grounds import HARMLESS
from mpsguard.guard.triage.orphaned_work import Unnoticed
from mpsguard.linux.identity import ProcessKey

AFTERMATH: Final = 60.0
"""Seconds after a fault within which the crash of one of its victims is its consequence."""

_KEPT: Final = 90.0
"""Seconds for which an earlier fault is remembered."""

_MOST: Final = 4096
"""Processes remembered; the oldest go first. A host with eight GPUs has some 400 MPS clients."""

_MOST_UNNOTICED: Final = 64
"""Faults that no server noticed; each needs a client that ended alone on its lane."""


class Past:
    """The earlier incidents, in the order in which they began: a layer over ``base``, which it does not change."""

    def __init__(self, base: Self | None = None) -> None:
        self._base = base
        self._hit: dict[ProcessKey, float] = {}
        self._lost: dict[ProcessKey, float] = {}
        self._repeated: dict[ProcessKey, float] = {}
        self._involved: dict[ProcessKey, float] = {}
        self._unnoticed: list[Unnoticed] = []

    def add(self, incident: Incident, unnoticed: Unnoticed | None = None) -> None:
        """Add an incident."""
        for victim in incident.victims:
            if victim.process is not None:
                self._hit.setdefault(victim.process, incident.began)
        there = (*incident.victims, *incident.survived, *incident.candidates, incident.culprit)
        for suspect in there if incident.ground not in HARMLESS else ():
            if suspect is not None and suspect.process is not None:
                self._lost.setdefault(suspect.process, incident.began)
        if (
            incident.ground is Ground.REPEATED_ALONE
            and incident.culprit is not None
            and incident.culprit.process is not None
        ):
            self._repeated.setdefault(incident.culprit.process, incident.began)
        for suspect in (*incident.victims, *incident.candidates, incident.culprit):
            if suspect is not None and suspect.process is not None:
                self._involved[suspect.process] = max(incident.began, self._involved.get(suspect.process, 0.0))
        if unnoticed is not None:
            self._unnoticed.append(unnoticed)

    def was_hit(self, process: ProcessKey | None, at: float) -> bool:
        """Return whether a fault before ``at`` has hit a process."""
        return process is not None and any(layer._hit.get(process, inf) <= at for layer in self._layers())

    def had_lost(self, process: ProcessKey, at: float) -> bool:
        """Return whether a process had lost its context by a fault before ``at``, its own or another's."""
        return any(layer._lost.get(process, inf) < at for layer in self._layers())

    def has_repeated(self, process: ProcessKey) -> bool:
        """Return whether it is proven that a process repeated alone what its lane had faulted by."""
        return any(process in layer._repeated for layer in self._layers())

    def unnoticed(self) -> tuple[Unnoticed, ...]:
        """Return the faults that no server noticed, newest first."""
        return tuple(each for layer in self._layers() for each in reversed(layer._unnoticed))

    def explains(self, incident: Incident) -> bool:
        """Return whether a crash is a consequence of an earlier fault: its victims abort on their CUDA error."""
        culprit = incident.culprit
        if incident.fault_class is not FaultClass.PROCESS or culprit is None or incident.victims:
            return False
        return any(
            culprit.process is not None
            and culprit.process in layer._involved
            and 0 <= incident.began - layer._involved[culprit.process] <= AFTERMATH
            for layer in self._layers()
        )

    def forget(self, now: float) -> None:
        """Remove what is too old, and the oldest of what is too much."""
        for times in (self._hit, self._lost, self._repeated, self._involved):
            old = [process for process, at in times.items() if at < now - _KEPT]
            for process in old:
                del times[process]
            while len(times) > _MOST:
                del times[next(iter(times))]
        self._unnoticed = [each for each in self._unnoticed if each.incident.began >= now - _KEPT][-_MOST_UNNOTICED:]

    def _layers(self) -> Iterator[Self]:
        yield self
        if self._base is not None:
            yield from self._base._layers()
