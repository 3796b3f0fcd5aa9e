"""The vault's counters, for the metrics exporter and the control API."""

from collections.abc import Sequence

import msgspec

from mpsguard.vault.server import quota as quotas
from mpsguard.vault.wire.region import SessionRecord


class Counters(msgspec.Struct, frozen=True):
    """Totals since the guard started, then what is held at this moment. Sizes in bytes."""

    regions_made: int
    regions_opened: int
    regions_released: int
    regions_expired: int
    regions_lost: int
    """Regions in a manifest of which the memory was missing after a restart of the guard."""
    fences: int
    promotions: int
    early_deaths: int
    """Promoted writers that ended without giving their lease back, shortly after their promotion."""
    refusals: dict[str, int]
    """By `mpsguard.vault.wire.errors.Code`."""
    connections_made: int
    connections: int
    sessions: int
    regions: int
    chunks: int
    bytes: int
    unkept: int
    """Bundles that are in no descriptor storage at this moment and would be lost with the guard."""


class Tally:
    """The running totals; `Vault.counters` makes the snapshot."""

    def __init__(self) -> None:
        self.made = self.opened = self.released = self.expired = self.lost = self.fences = self.promotions = 0
        self.early_deaths = 0
        self.connections_made = self.connections = 0
        self.refusals: dict[str, int] = {}

    def refused(self, code: str) -> None:
        """Count a refusal."""
        self.refusals[code] = self.refusals.get(code, 0) + 1


def snapshot(tally: Tally, sessions: Sequence[SessionRecord], unkept: int) -> Counters:
    """Return the totals together with what is held now."""
    held = quotas.of_sessions(sessions)
    return Counters(
        regions_made=tally.made,
        regions_opened=tally.opened,
        regions_released=tally.released,
        regions_expired=tally.expired,
        regions_lost=tally.lost,
        fences=tally.fences,
        promotions=tally.promotions,
        early_deaths=tally.early_deaths,
        refusals=dict(tally.refusals),
        connections_made=tally.connections_made,
        connections=tally.connections,
        sessions=held.sessions,
        regions=held.regions,
        chunks=held.chunks,
        bytes=held.bytes,
        unkept=unkept,
    )
