"""Checkpoints of a token server: the gaps between its tokens, and then what they cost a co-tenant, in a run of its own.

Beside a co-tenant that keeps the GPU busy the server's gaps are the tenant's doing: their 99th percentile is several
steps without any checkpoint.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Final

from tests.bench.checkpoint import cotenant
from tests.bench.checkpoint.cotenant import numbers
from tests.bench.checkpoint.place import GIB, finished, start, store_for, within
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.events import Event
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.statistics import percentile

_MS: Final = 1e3
_TIME: Final = 240.0
_FIRSTS: Final = {"gpt2": 4, "7b": 1, "tiny": 1}
"""Servers that take one checkpoint each: the first ones, beside that of the server that takes more."""
_BESIDE: Final = {"gpt2": 90, "7b": 6, "tiny": 2}
"""Checkpoints beside a co-tenant; those of a small model take 10 ms each, so that one alone says little of its rate."""


def measure(bench: Bench) -> Iterator[Finding]:
    """GPT-2's shape and a 7B model's; the first checkpoint copies the weights, the others what changed."""
    if bench.programs.simulated:
        shapes = {"tiny": 64 << 20}
    else:
        shapes = {"gpt2": GIB} if bench.quick else {"gpt2": GIB, "7b": 15 * GIB}
    for shape, size in shapes.items():
        yield from _shape(bench, shape, size)


def _shape(bench: Bench, shape: str, size: int) -> Iterator[Finding]:
    what = f"serving, {shape}"
    words = ["--shape", shape, "--tokens", bench.runs(200, 50)]
    store, _ = store_for(bench, f"serving-{shape}", 2, size)
    try:
        yield from _alone(bench, what, shape, words, store)
        with bench.guard() as guard, Clients() as clients:
            tenant = start(bench, clients, guard, "tenant", [])
            tenant.wait_for("first_kernel")
            server = start(
                bench,
                clients,
                guard,
                "server",
                [*words, "--store", store / "beside", "--rounds", bench.runs(_BESIDE[shape], 1)],
            )
            yield from finished(f"{what}, beside a co-tenant", server, within(bench, _TIME))
            yield from cotenant.findings(bench, what, tenant, server.all_seen("gaps"), "during")
    finally:
        rmtree(store, ignore_errors=True)


def _alone(bench: Bench, what: str, shape: str, words: list[object], store: Path) -> Iterator[Finding]:
    firsts: list[Event] = []
    others: list[Event] = []
    starting: list[float] = []
    # The first server goes on behind its first checkpoint.
    for number, rounds in enumerate([bench.runs(10, 2), *[0] * bench.runs(_FIRSTS[shape], 0)]):
        place = store / f"{number}"
        with bench.guard() as guard, Clients() as clients:
            server = start(bench, clients, guard, "server", [*words, "--store", place, "--rounds", rounds])
            yield from finished(what, server, within(bench, _TIME))
            told = server.all_seen("gaps")
            firsts += told[:1]
            others += told[1:]
            starting += [max(numbers(each, "starting"), default=0.0) for each in server.all_seen("started")]
        rmtree(place, ignore_errors=True)
    yield from _gaps(f"{what}: longest extra gap between tokens, first checkpoint, with the weights", firsts)
    yield from _gaps(f"{what}: longest extra gap between tokens, checkpoint", others)
    if firsts and starting:
        step = median(median(numbers(each, "alone")) for each in firsts)
        yield sampled(
            f"{what}: longest extra gap between tokens while the copier starts, once",
            [(each - step) * _MS for each in starting],
            unit="ms",
            bar="none: stated",
            holds=True,
        )


def _gaps(name: str, events: Sequence[Event]) -> Iterator[Finding]:
    extra = [_longest(each) for each in events if each.members["during"]]
    if not extra:
        return
    step = median(median(numbers(each, "alone")) for each in events) * _MS
    cut = median(each.number("cut") for each in events) * _MS
    published = max(max(numbers(each, "publishing")) for each in events) * _MS
    during, alone = _all(events, "during"), _all(events, "alone")
    slow, usual = (sum(gap * _MS > 2 * step for gap in gaps) for gaps in (during, alone))
    p99 = percentile(alone, 0.99) * _MS
    refused = [str(each.members["refused"]) for each in events if each.members["refused"]]
    yield sampled(
        name,
        extra,
        unit="ms",
        bar="max <= one step",
        holds=max(extra) <= step and not refused,
        note=f"step {step:.2f} ms, p99 {p99:.2f}; cut {cut:.2f} ms; longest publication {published:.2f} ms; gaps over "
        f"two steps: {slow} of {len(during)}, without a checkpoint {usual} of "
        f"{len(alone)}{_longest_at(events)}" + "".join(f"; {each}" for each in refused[:2]),
    )


def _all(events: Sequence[Event], member: str) -> list[float]:
    return [each for event in events for each in numbers(event, member)]


def _longest_at(events: Sequence[Event]) -> str:
    """Where the longest gap lies: tells what the copier did then."""
    event = max(events, key=lambda each: max(numbers(each, "during"), default=0.0))
    found = numbers(event, "during")
    index = found.index(max(found))
    return f"; the longest began {sum(found[:index]):.3g} s after the request, of {sum(found):.3g}"


def _longest(event: Event) -> float:
    return (max(numbers(event, "during")) - median(numbers(event, "alone"))) * _MS


MEASUREMENT: Final = Measurement("serving", "checkpoints of a token server: the longest gap", measure)
