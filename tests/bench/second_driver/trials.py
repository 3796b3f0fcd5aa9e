"""One program and one fault of a neighbour: what became of it, and the rows of many of them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from tests.bench.core.events import DIED, Outcome
from tests.bench.core.finding import Finding, sampled
from tests.bench.results.schema import Peer, Row
from tests.bench.second_driver.programs import State
from tests.bench.second_driver.second import Mode, Takeover

BARS: Final = {Mode.COLD: 500.0, Mode.HOT: 50.0}
"""Milliseconds of a takeover, by their median."""


@dataclass(frozen=True)
class Trial:
    """One program at one fault; ``mode`` None is stock MPS without the preload."""

    program: str
    mode: Mode | None
    fault: str
    outcome: Outcome
    takeover: Takeover | None = None

    @property
    def went_on(self) -> bool:
        """Whether it finished its work, by the second driver if it had one."""
        by_second = self.takeover is not None and self.takeover.taken_over
        return self.outcome.ok and (self.mode is None or by_second)

    @property
    def digest(self) -> str | None:
        """Of all that it computed; None if it did not finish."""
        return digest(self.outcome)

    @property
    def first_kernel(self) -> float | None:
        """Milliseconds from the word until its first kernel had ended; of a busy program, of its longest round."""
        event = self.outcome.find("went_on")
        return event.number("milliseconds") if event is not None else None

    def describe(self) -> str:
        """In a few words: why it did not go on, or how it did."""
        if self.takeover is not None and not self.takeover.taken_over:
            return self.takeover.describe()
        if self.outcome.ok:
            return self.takeover.describe() if self.takeover else "finished without a takeover"
        died = self.outcome.find(DIED)
        return f"died: {died.members.get('code')} {died.members.get('name')}" if died else self.outcome.describe()[:200]


def digest(outcome: Outcome) -> str | None:
    """What a program that finished says of its results."""
    result = outcome.find("result")
    return str(result.members.get("digest")) if outcome.ok and result is not None else None


@dataclass(frozen=True)
class Undisturbed:
    """The results of runs of one program without preload and fault."""

    program: str
    digests: tuple[str | None, ...]

    @property
    def agreed(self) -> str | None:
        """What all of them computed; None if they differ or one failed."""
        found = set(self.digests)
        return next(iter(found)) if len(found) == 1 else None


def rows(
    program: str,
    trials: Sequence[Trial],
    undisturbed: Undisturbed,
    wanted: int,
    note: str,
    *,
    state: State,
    modes: Sequence[Mode] = tuple(Mode),
) -> Iterator[Finding]:
    """Of one program: of each mode, how many go on, what they computed, and how long it took."""
    mine = [each for each in trials if each.program == program]
    stock = [each for each in mine if each.mode is None]
    for mode in modes:
        made = [each for each in mine if each.mode is mode]
        name = f"{program}, {mode}" if state is State.IDLE else f"{program}, {mode}, {state}"
        yield _going_on(name, made, stock, wanted, note, state=state)
        yield _equal(name, made, undisturbed, wanted)
        yield from _times(name, state, made, BARS[mode])


def _going_on(
    name: str, made: Sequence[Trial], stock: Sequence[Trial], wanted: int, note: str, *, state: State
) -> Finding:
    value = sum(each.went_on for each in made)
    survivors = sum(each.went_on for each in stock)
    row = Row(
        name=f"{name}: {state} programs that go on after a neighbour's SM fault",
        value=value,
        count=wanted,
        unit="programs",
        bar=f"{wanted} of {wanted}",
        holds=value == wanted,
        runs=1,
        peer=Peer(name="stock MPS, without preload", value=survivors, count=len(stock)) if stock else None,
    )
    lost = Counter(f"{each.fault}: {each.describe()}" for each in made if not each.went_on)
    gone = Counter(each.describe() for each in stock if not each.went_on)
    said = [f"not: {why} ({count})" for why, count in lost.items()]
    said += [f"stock: {why} ({count})" for why, count in gone.items()]
    return Finding(row, "; ".join(filter(None, [note, *said])))


def _equal(name: str, made: Sequence[Trial], undisturbed: Undisturbed, wanted: int) -> Finding:
    agreed = undisturbed.agreed
    value = sum(each.went_on and agreed is not None and each.digest == agreed for each in made)
    row = Row(
        name=f"{name}: results equal to those of an undisturbed run, bit for bit",
        value=value,
        count=wanted,
        unit="programs",
        bar=f"{wanted} of {wanted}",
        holds=value == wanted,
        runs=1,
    )
    return Finding(row, "" if agreed is not None else f"undisturbed runs do not agree: {undisturbed.digests}")


def _times(name: str, state: State, made: Sequence[Trial], bar: float) -> Iterator[Finding]:
    going = [each for each in made if each.went_on]
    if taken := [each.takeover.milliseconds for each in going if each.takeover is not None]:
        yield sampled(f"{name}: takeover", taken, unit="ms", bar=f"median <= {bar:g} ms", holds=median(taken) <= bar)
    if first := [each.first_kernel for each in going if each.first_kernel is not None]:
        what = "first kernel after the word" if state is State.IDLE else "longest round"
        yield sampled(f"{name}: {what}, takeover included", first, unit="ms", bar="reported", holds=True)
