"""Checkpoints of a training while it runs: the longest extra step, the throughput, and the same of two peers."""

from collections.abc import Iterator
from dataclasses import dataclass
from shutil import rmtree
from statistics import mean, median
from typing import Final

from tests.bench.checkpoint import cotenant
from tests.bench.checkpoint.cotenant import numbers
from tests.bench.checkpoint.place import GIB, finished, start, store_for, within
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.events import Event
from tests.bench.core.finding import Finding, all_of, none_of, sampled

EXTRA: Final = 50.0
"""Bar: ms by which the longest step during a checkpoint may exceed the median of those without."""
KEPT: Final = 0.97
"""Bar: of the throughput, from the cut to the commit."""
_PREPARED: Final = 240.0
_MS: Final = 1e3


@dataclass(frozen=True)
class Setting:
    """One size of state."""

    name: str
    size: int
    spare: int
    buffers: int
    rounds: int
    peers: int
    rows: int
    accumulate: int = 1
    steps: int = 10
    """At most, between two checkpoints."""
    one: bool = False
    seconds: float = 120.0


TRAINING: Final = Setting("20 GB", 205 * 10**8, 205 * 10**8, 8 * GIB, 8, 1, 4096, steps=30)
"""A layer has 0.8 GB of state: 25 of them fit."""
QUICK: Final = Setting("2 GB", 2 * 10**9, 2 * 10**9, 2 * GIB, 2, 1, 2048, seconds=15.0)
SIMULATED: Final = Setting("24 MB", 24 << 20, 24 << 20, 64 << 20, 2, 1, 64, seconds=15.0)
LARGEST: Final = Setting(
    "as large as the card takes", 44 * 10**9, 0, 41 * GIB, 3, 0, 2048, accumulate=8, steps=5, one=True
)
"""Buffers for all of it: what finds no room there waits for the disk, and a step for that."""


def measure(bench: Bench) -> Iterator[Finding]:
    """Some GB of state, with spare memory for all of it, and the peers in the same process."""
    setting = SIMULATED if bench.programs.simulated else QUICK if bench.quick else TRAINING
    yield from _measured(bench, setting, "training", 3)


def measure_largest(bench: Bench) -> Iterator[Finding]:
    """No room for spare memory: what is not copied yet is waited for. Half of the card, if quick."""
    quick = Setting("4 GB without spare memory", 4 * 10**9, 0, 4 * GIB, 2, 0, 4096, one=True, seconds=15.0)
    small = Setting("24 MB without spare memory", 24 << 20, 0, 64 << 20, 2, 0, 64, one=True, seconds=15.0)
    yield from _measured(bench, small if bench.programs.simulated else quick if bench.quick else LARGEST, "largest", 1)


def _measured(bench: Bench, setting: Setting, name: str, images: int) -> Iterator[Finding]:
    store, size = store_for(bench, name, images, setting.size)
    words = ["--store", store / "images", "--size", size, "--spare", min(setting.spare, size), "--rows", setting.rows]
    words += [
        "--accumulate",
        setting.accumulate,
        "--buffers",
        setting.buffers,
        "--rounds",
        setting.rounds,
        "--peers",
        setting.peers,
        "--steps",
        setting.steps,
    ]
    words += ["--seconds", setting.seconds, *(["--one"] if setting.one else [])]
    try:
        with bench.guard() as guard, Clients() as clients:
            tenant = start(bench, clients, guard, "tenant", [])
            trainer = start(bench, clients, guard, "trainer", words)
            prepared = trainer.wait_for("prepared", _PREPARED)
            bench.say(f"  state {prepared.number('size') / 1e9:.1f} GB in {store}")
            what = f"training, {prepared.number('size') / 1e9:.3g} GB"
            yield from finished(what, trainer, within(bench, 4 * setting.seconds + 120.0))
            if setting.accumulate > 1:
                what += f", {setting.accumulate} passes a step"
            if not setting.spare:
                what += ", no spare memory"
            yield from _rows(what, trainer, bench)
            yield from cotenant.findings(bench, what, tenant, _committed(trainer), "steps")
    finally:
        rmtree(store, ignore_errors=True)


def _committed(trainer: Client) -> list[Event]:
    return [each for each in trainer.all_seen("checkpoint") if not each.members["refused"]]


def _rows(what: str, trainer: Client, bench: Bench) -> Iterator[Finding]:
    ours = _committed(trainer)
    refused = [str(each.members["refused"]) for each in trainer.all_seen("checkpoint") if each.members["refused"]]
    total = len(ours) + len(refused)
    yield all_of(f"{what}: checkpoints committed", len(ours), total, "checkpoints", note="; ".join(refused[:3]))
    yield none_of(
        f"{what}: pieces written without an announcement",
        sum(round(each.number("unannounced")) for each in ours),
        sum(round(each.number("copied")) for each in ours),
        "pieces",
    )
    if not ours:
        return
    extra = [_extra(each) for each in ours]
    kept = [_kept(each) for each in ours]
    for event in ours:
        bench.say(
            f"  cut {event.number('cut') * _MS:.1f} ms, waited {event.number('waited') * _MS:.1f} ms, drained "
            f"{event.number('drained'):.2f} s, committed {event.number('took'):.2f} s, step {_alone(event) * _MS:.1f} "
            f"ms, longest extra {_extra(event):.1f} ms, throughput {_kept(event):.3f}"
        )
    yield sampled(
        f"{what}: longest extra step of a checkpoint",
        extra,
        unit="ms",
        bar=f"max <= {EXTRA:g}",
        holds=max(extra) <= EXTRA,
        note=f"cut {median(each.number('cut') for each in ours) * _MS:.1f} ms, "
        f"waited {median(each.number('waited') for each in ours) * _MS:.1f} ms",
    )
    yield sampled(
        f"{what}: throughput from cut to commit", kept, unit="", bar=f"median >= {KEPT:g}", holds=median(kept) >= KEPT
    )
    yield sampled(
        f"{what}: seconds to drain", [each.number("drained") for each in ours], unit="s", bar="reported", holds=True
    )
    yield sampled(
        f"{what}: seconds to commit", [each.number("took") for each in ours], unit="s", bar="reported", holds=True
    )
    yield from _peer_rows(what, trainer)


def _peer_rows(what: str, trainer: Client) -> Iterator[Finding]:
    for name in ("torch.save", "async_save"):
        made = [each for each in trainer.all_seen("peer") if each.members["name"] == name]
        good = [each for each in made if not each.members["refused"]]
        if good:
            yield sampled(
                f"{what}, {name}: longest extra step",
                [_extra(each) for each in good],
                unit="ms",
                bar="reported",
                holds=True,
                note=f"throughput {median(_kept(each) for each in good):.3f}",
            )
        for bad in made:
            if bad.members["refused"]:
                yield all_of(f"{what}, {name}: made", 0, 1, "checkpoints", note=str(bad.members["refused"]))


def _alone(event: Event) -> float:
    return median(numbers(event, "alone"))


def _extra(event: Event) -> float:
    return (max(numbers(event, "steps")) - _alone(event)) * _MS


def _kept(event: Event) -> float:
    return _alone(event) / mean(numbers(event, "steps"))


MEASUREMENT: Final = Measurement("training", "checkpoints of a training, beside torch.save and async_save", measure)
WITHOUT_SPARE: Final = Measurement("largest", "the same without room for spare memory", measure_largest)
