"""Device faults: those of a GPU itself that still stand, kept in the journal's store over restarts of the guard."""

from pathlib import Path
from typing import Final

import msgspec

from mpsguard.control_api.probes import DeviceFault
from mpsguard.incident import FaultClass
from mpsguard.incidents.tracker import TrackedIncident
from mpsguard.journal.journal import Journal

_KEY: Final = "device_faults"
_KEPT: Final = 16
"""Faults that are kept, one for each GPU: a machine has 16 GPUs at most."""


class _Saved(msgspec.Struct, frozen=True):
    boot_id: str
    faults: tuple[DeviceFault, ...]


class DeviceFaults:
    """The device faults of this boot that no operator has called repaired; one for each GPU, the first."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        self.standing = self._recalled()

    def observe(self, tracked: TrackedIncident) -> None:
        """Take note of an incident that is new or has a new verdict."""
        incident = tracked.incident
        if incident.fault_class is not FaultClass.DEVICE:
            return
        fault = DeviceFault(tracked.id, incident.gpu, incident.xids)
        kept = next((each for each in self.standing if each.gpu == fault.gpu), None)
        if kept is not None and kept.incident != fault.incident:
            return
        others = tuple(each for each in self.standing if each.gpu != fault.gpu)
        self._keep((*others, fault)[:_KEPT])

    def repaired(self) -> tuple[DeviceFault, ...]:
        """Forget all that stand, and return them."""
        standing = self.standing
        self._keep(())
        return standing

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
