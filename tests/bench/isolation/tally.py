"""What came of one kind of misdeed in one arm, all repetitions together."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench.core.client import Client
from tests.bench.core.finding import Finding
from tests.bench.isolation.innocents import COUNT
from tests.bench.isolation.partial import not_made, skipped
from tests.bench.results.schema import Peer, Row


@dataclass
class Tally:
    """Counts, and the times between which they were made."""

    name: str
    wanted: int
    made: int = 0
    survivors: int = 0
    """Innocents that lived on, of `COUNT` each time."""
    begin: float = 0.0
    end: float = 0.0
    crew: tuple[Client, ...] = ()
    """The innocents, if they were the same all the while."""
    slowest: float | None = None
    """The innocents' longest iteration meanwhile, in seconds; None if one of them died or did not report."""
    errors: list[str] = field(default_factory=list)
    skipped: str = ""
    """Why this machine cannot do it."""

    def add(self, alive: int) -> None:
        """Count one repetition that was made, and proven."""
        self.made += 1
        self.survivors += alive

    @property
    def total(self) -> int:
        """How many innocents there were, counted anew each time."""
        return self.made * COUNT

    @property
    def all_lived(self) -> bool:
        """Whether there were any, and none died."""
        return self.made > 0 and self.survivors == self.total


def survival(tally: Tally, stock: Tally | None) -> Iterator[Finding]:
    """The row of the innocents that survive, stock beside it; and that all was made."""
    if tally.skipped:
        yield skipped(tally.name, tally.skipped)
        return
    yield not_made(tally.name, tally.errors, tally.made, tally.wanted)
    if stock is not None:
        yield not_made(f"stock, {tally.name}", stock.errors, stock.made, stock.wanted)
    if not tally.made:
        return
    row = Row(
        name=f"{tally.name}: innocents that survive",
        value=tally.survivors,
        count=tally.total,
        unit="innocents",
        bar=f"{tally.total} of {tally.total}",
        holds=tally.all_lived and tally.made == tally.wanted,
        runs=tally.made,
        peer=Peer(name="stock", value=stock.survivors, count=stock.total) if stock and stock.made else None,
    )
    yield Finding(row)
