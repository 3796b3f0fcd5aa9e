"""What a checkpoint costs another client of the lane: its rate meanwhile, over its rate before."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from tests.bench.checkpoint.place import device
from tests.bench.core.bench import Bench
from tests.bench.core.client import Client
from tests.bench.core.events import Event
from tests.bench.core.finding import Finding, sampled

KEPT: Final = 0.99


def numbers(event: Event, member: str) -> list[float]:
    """Seconds that a program told."""
    found = event.members[member]
    assert isinstance(found, list)
    return [float(each) for each in found]


def findings(bench: Bench, what: str, tenant: Client, checkpoints: Sequence[Event], during: str) -> Iterator[Finding]:
    """End the tenant; a row, if both rates are known for a checkpoint.

    Args:
        bench: of the run.
        what: was measured.
        tenant: runs `tests.bench.checkpoint.tenant`.
        checkpoints: each with the seconds of its steps (member ``during``), and of those before (member ``alone``), and
            when the first of each began (``began``, ``alone_began``).
        during: name of the member.
    """
    tenant.stop()
    windows = tenant.wait_for("windows", 30.0)
    tenant.finish()
    if rates := _rates(windows, checkpoints, during):
        yield sampled(
            f"{what}: a co-tenant's rate during a checkpoint, over that between checkpoints",
            rates,
            unit="",
            bar="reported" if device(bench) == "cpu" else f"median >= {KEPT:g}",
            holds=device(bench) == "cpu" or median(rates) >= KEPT,
            note=_in_parts(windows, checkpoints),
        )


def _rates(windows: Event, checkpoints: Sequence[Event], during: str) -> list[float]:
    rates = []
    for event in checkpoints:
        meanwhile = _rate(windows, event.number("began"), event.number("began") + sum(numbers(event, during)))
        before = _before(windows, event)
        if meanwhile and before:
            rates.append(meanwhile / before)
    return rates


def _in_parts(windows: Event, checkpoints: Sequence[Event]) -> str:
    """Return the rates of long checkpoints in each of their parts: in the cut, while copied, while stored."""
    parts: dict[str, list[float]] = {}
    for event in checkpoints:
        before = _before(windows, event)
        if "drained" not in event.members or not before:
            continue
        began = event.number("began")
        cut = began + event.number("cut")
        drained, committed = cut + event.number("drained"), cut + event.number("took")
        for part, begin, end in (
            ("in the cut", began, cut),
            ("until copied", cut, drained),
            ("until stored", drained, committed),
        ):
            if meanwhile := _rate(windows, begin, end):
                parts.setdefault(part, []).append(meanwhile / before)
    return ", ".join(f"{part} {median(rates):.3f}" for part, rates in parts.items())


def _before(windows: Event, checkpoint: Event) -> float:
    began = checkpoint.number("alone_began")
    return _rate(windows, began, began + sum(numbers(checkpoint, "alone")))


def _rate(windows: Event, begin: float, end: float) -> float:
    found = windows.members["windows"]
    assert isinstance(found, list)
    inside = [(length, count) for at, length, count in found if begin <= at and at + length <= end]
    seconds = sum(length for length, _ in inside)
    return sum(count for _, count in inside) / seconds if seconds else 0.0
