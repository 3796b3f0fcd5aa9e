"""Restoring an image: its rate beside that of disk and bus; and what fine-tunes of one model share in a store."""

from collections.abc import Iterator
from shutil import rmtree
from statistics import median
from typing import Final

from tests.bench.checkpoint.laps import described
from tests.bench.checkpoint.place import GIB, finished, start, store_for, within
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, sampled

RATE: Final = 0.85
"""Bar: of what the slower of disk and bus gives."""
SAVED: Final = 0.8


_DISK: Final = 6 * 10**9
"""Bytes on the machine's own disk, which may take a minute to write them."""
_IN_MEMORY, _ON_DISK = "from a tmpfs", "from the disk"


def measure(bench: Bench) -> Iterator[Finding]:
    """20 GB from a tmpfs, if there is room, and 6 from the disk; 2, if quick."""
    small, quick = bench.programs.simulated, bench.quick
    model = 40 << 20 if small else 200 << 20 if quick else GIB
    size = 32 << 20 if small else 2 * 10**9 if quick else 20 * 10**9
    yield from _measured(bench, _IN_MEMORY, size, model)
    if not small and not quick:
        yield from _measured(bench, _ON_DISK, _DISK, 0)


def _measured(bench: Bench, where: str, size: int, model: int) -> Iterator[Finding]:
    store, size = store_for(bench, "restore", 2, size, on_disk=where == _ON_DISK)
    size = size // (2 << 20) * (2 << 20)
    words = ["--store", store / "images", "--size", size, "--model", model, "--rounds", bench.runs(3, 2)]
    try:
        with bench.guard() as guard, Clients() as clients:
            program = start(bench, clients, guard, "images_program", words)
            yield from finished(f"restoring {where}", program, within(bench, 200.0))
    finally:
        rmtree(store, ignore_errors=True)
    for event in program.all_seen("shared"):
        # Of the fine-tunes: with the base model, which has to be stored once, 0.792 is the most that six can save.
        base = event.number("images") / 6
        saved = 1 - (event.number("stored") - base) / (event.number("images") - base)
        yield sampled(
            "five fine-tunes that change a twentieth of a model: share of their bytes saved",
            [saved],
            unit="",
            bar=f">= {SAVED:g}",
            holds=saved >= SAVED,
            note=f"with the base {event.number('stored') / 1e6:.0f} of {event.number('images') / 1e6:.0f} MB stored",
        )
    told = program.all_seen("restored")
    if told:
        rates = [each.number("size") / each.number("seconds") for each in told]
        bounds = [min(each.number("disk"), each.number("bus")) for each in told]
        shares = [rate / bound for rate, bound in zip(rates, bounds, strict=True)]
        yield sampled(
            f"restore of {size / 1e9:.3g} GB {where}: rate over the slower of disk and bus",
            shares,
            unit="",
            bar=f"median >= {RATE:g}",
            holds=median(shares) >= RATE,
            note=f"{median(rates) / 1e9:.2f} GB/s; disk {median(each.number('disk') for each in told) / 1e9:.2f}, "
            f"bus {median(each.number('bus') for each in told) / 1e9:.1f} GB/s; {described(told)}",
        )


MEASUREMENT: Final = Measurement("restore", "restoring an image, and what images share", measure)
