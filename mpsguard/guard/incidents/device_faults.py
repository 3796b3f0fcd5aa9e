"""Device faults: those of a GPU itself that still stand, kept in the journal's store over restarts of the guard."""

from typing import Final

import msgspec

from mpsguard.guard.control_api.health import DeviceFault
from mpsguard.guard.evidence import Evidence
from mpsguard.guard.incident import FaultClass
from mpsguard.guard.incidents.tracker import TrackedIncident
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.triage import severity
from mpsguard.guard.triage.client_history import when
from mpsguard.linux import boot

_KEY: Final = "device_faults"
_KEPT: Final = 16
"""Faults that are kept, one for each GPU: a machine has 16 GPUs at most."""


class _Saved(msgspec.Struct, frozen=True):
    boot_id: str
    faults: tuple[DeviceFault, ...]


class DeviceFaults:
    """The device faults of this boot that stand; one for each GPU, the first.

    One stands until an operator calls it repaired, until the verdict on it is another one, or until the driver says
    that nothing needs to be done with the GPU any more. A GPU that is to be replaced waits for the operator.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._boot_id = boot.boot_id()
        self._closed: dict[str, float] = {}
        """GPUs of which the driver said that nothing needs to be done, and when: incidents change after that."""
        self.standing = self._recalled()

    def observe(self, tracked: TrackedIncident) -> None:
        """Take note of an incident that is new or has a new verdict."""
        incident = tracked.incident
        signs = severity.device_signs(severity.severities(incident.evidence))
        lasting = any(sign.lasting for _, sign in signs)
        over = (
            incident.gpu in self._closed
            and not lasting
            and all(when(evidence) <= self._closed[incident.gpu] for evidence, _ in signs)
        )
        if incident.fault_class is not FaultClass.DEVICE or over:
            self._drop(tuple(each for each in self.standing if each.incident == tracked.id))
            return
        kept = next((each for each in self.standing if each.gpu == incident.gpu), None)
        if kept is None:
            self._keep((*self.standing, DeviceFault(tracked.id, incident.gpu, incident.xids, lasting))[:_KEPT])
            return
        # The first one stays, and lasts if a later one does.
        named = kept if kept.incident != tracked.id else DeviceFault(tracked.id, incident.gpu, incident.xids)
        fault = msgspec.structs.replace(named, lasting=kept.lasting or lasting)
        self._keep(tuple(fault if each is kept else each for each in self.standing))

    def close(self, evidence: Evidence) -> tuple[DeviceFault, ...]:
        """Forget those that the driver says are over, and return them; most observations say nothing of the kind."""
        found = severity.of(evidence)
        if found is None or not found.closes or evidence.gpu is None:
            return ()
        self._closed[evidence.gpu] = when(evidence)
        over = tuple(each for each in self.standing if each.gpu == evidence.gpu and not each.lasting)
        self._drop(over)
        return over

    def repaired(self) -> tuple[DeviceFault, ...]:
        """Forget all that stand, and return them."""
        standing = self.standing
        self._keep(())
        return standing

    def _drop(self, faults: tuple[DeviceFault, ...]) -> None:
        if faults:
            self._keep(tuple(each for each in self.standing if each not in faults))

    def _keep(self, faults: tuple[DeviceFault, ...]) -> None:
        self.standing = faults
        self._journal.remember(_KEY, msgspec.json.encode(_Saved(self._boot_id, faults)).decode())

    def _recalled(self) -> tuple[DeviceFault, ...]:
        saved = self._journal.recall(_KEY)
        if saved is None:
            return ()
        try:
            kept = msgspec.json.decode(saved, type=_Saved)
        except msgspec.DecodeError:
            return ()
        return kept.faults if kept.boot_id == self._boot_id else ()
