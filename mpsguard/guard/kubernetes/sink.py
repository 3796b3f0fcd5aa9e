"""What one round tells, and to what it is told."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from mpsguard.guard.journal.records import RecordedIncident
from mpsguard.guard.kubernetes.event_series import Series
from mpsguard.guard.kubernetes.notices import Cast


class ToldIncident(msgspec.Struct, frozen=True):
    """An incident with its pods."""

    record: RecordedIncident
    cast: Cast


class NotToldError(Exception):
    """A round could not be told now, or not all of it; one line says why."""


class Sink(Protocol):
    """A system to which incidents are told."""

    @property
    def name(self) -> str:
        """Its name, of which the file with its progress is named, too."""

    async def tell(self, told: Sequence[ToldIncident], known: Mapping[str, Series]) -> dict[str, Series]:
        """Tell incidents, oldest first. The same incidents may come again if this did not return.

        Args:
            told: The incidents.
            known: What this method returned last.

        Raises:
            NotToldError: They are to be told again.
        """
