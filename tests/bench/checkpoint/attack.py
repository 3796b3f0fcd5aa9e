"""Writes that were not announced: whether a torn image is ever committed."""

from collections.abc import Iterator
from shutil import rmtree
from typing import Final

from tests.bench.checkpoint.place import finished, start, store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, all_of, none_of


def measure(bench: Bench) -> Iterator[Finding]:
    """At least 100 checkpoints, each with such writes behind its cut."""
    rounds, seconds = bench.runs(120, 20), 15.0 if bench.quick else 150.0
    size = 16 << 20 if bench.programs.simulated else 256 << 20
    store, size = store_for(bench, "attack", 3, size)
    words = ["--store", store / "images", "--size", size, "--rounds", rounds, "--seconds", seconds]
    try:
        with bench.guard() as guard, Clients() as clients:
            attacker = start(bench, clients, guard, "attacker", words)
            found = attacker.wait_for("attacks", 240.0 + seconds)
            yield from finished("unannounced writes", attacker, 60.0)
    finally:
        rmtree(store, ignore_errors=True)
    made, torn, committed = (round(found.number(member)) for member in ("made", "torn", "committed"))
    yield none_of(
        "writes that were not announced: torn images committed",
        round(found.number("wrong")),
        made,
        "checkpoints",
        note=f"{torn} refused as torn, {committed} committed with the content of the cut",
    )
    yield all_of("writes that were not announced: refused as torn, or whole", torn + committed, made, "checkpoints")


MEASUREMENT: Final = Measurement("unannounced", "checkpoints torn by writes that were not announced", measure)
