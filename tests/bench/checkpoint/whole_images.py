"""Images against copies made while the training stood still, and the losses of a run that goes on from the last one."""

from collections.abc import Iterator
from shutil import rmtree
from typing import Final

from tests.bench.checkpoint.place import finished, start, store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, all_of, none_of

_PREPARED: Final = 240.0


def measure(bench: Bench) -> Iterator[Finding]:
    """At least 20 checkpoints at random steps; a few, if quick."""
    size = 24 << 20 if bench.programs.simulated else 10**9 if bench.quick else 4 * 10**9
    rounds, losses = bench.runs(20, 4), bench.runs(30, 10)
    store, size = store_for(bench, "verify", 3, size)
    seconds = 20.0 if bench.quick else 150.0
    rows = 64 if bench.programs.simulated else 1024
    words = ["--store", store / "images", "--size", size, "--losses", losses, "--rows", rows]
    try:
        with bench.guard() as guard, Clients() as clients:
            verifier = start(
                bench,
                clients,
                guard,
                "verifier",
                [*words, "--spare", size // 2, "--rounds", rounds, "--seconds", seconds],
            )
            undisturbed = verifier.wait_for("losses", _PREPARED + seconds)
            yield from finished("images at random steps", verifier, 60.0)
            resumed = start(bench, clients, guard, "verifier", [*words, "--resume", "verified"])
            found = resumed.wait_for("losses", _PREPARED)
            yield from finished("resuming from an image", resumed, 60.0)
    finally:
        rmtree(store, ignore_errors=True)
    compared = verifier.all_seen("compared")
    yield none_of(
        "images at random steps of a training: pieces that differ from a copy made while it stood still",
        sum(round(each.number("wrong")) for each in compared),
        sum(round(each.number("pieces")) for each in compared),
        "pieces",
        runs=len(compared),
        note=f"{len(compared)} checkpoints",
    )
    theirs, ours = undisturbed.members["losses"], found.members["losses"]
    assert isinstance(theirs, list)
    assert isinstance(ours, list)
    same = sum(a == b for a, b in zip(theirs, ours, strict=False)) * (
        undisturbed.members["step"] == found.members["step"]
    )
    yield all_of("losses of a run resumed from an image, equal bit for bit", same, len(theirs), "losses")


MEASUREMENT: Final = Measurement("images", "images against copies made at a standstill; resumed losses", measure)
