"""What a checkpoint costs another client of the lane: its rate meanwhile, over its rate before."""

from collections.abc import Iterator, Sequence
from statistics import median
from typing import Final

from tests.gpu.checkpoint.place import device
from tests.gpu.core.bench import Bench
from tests.gpu.core.client import Client
from tests.gpu.core.events import Event
from tests.gpu.core.finding import Finding, sampled

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
        tenant: runs `tests.gpu.checkpoint.tenant`.
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
        )


def _rates(windows: Event, checkpoints: Sequence[Event], during: str) -> list[float]:
    found = windows.members["windows"]
    assert isinstance(found, list)

    def rate(begin: float, end: float) -> float:
        inside = [(length, count) for at, length, count in found if begin <= at and at + length <= end]
        seconds = sum(length for length, _ in inside)
        return sum(count for _, count in inside) / seconds if seconds else 0.0

    rates = []
    for event in checkpoints:
        meanwhile, before = (
            rate(event.number(began), event.number(began) + sum(numbers(event, steps)))
            for began, steps in (("began", during), ("alone_began", "alone"))
        )
        if meanwhile and before:
            rates.append(meanwhile / before)
    return rates
