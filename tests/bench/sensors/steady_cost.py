"""What the guard with all its sensors costs while nothing goes wrong: its own CPU time, and its clients' throughput.

As many clients as an MPS server takes hang on the guard, as many on a stock daemon. Both crowds are there all the time
and work in turns, so that the GPU's clocks weigh on both alike; the crowd that rests has nothing on the GPU.
"""

import time
from collections.abc import Iterator
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.cpu_time import Share, share, usage
from tests.bench.core.events import Outcome
from tests.bench.core.finding import Finding, all_of, sampled
from tests.bench.core.guard import Guard
from tests.bench.core.programs import Work
from tests.bench.core.statistics import alternating, ratios

CLIENTS, QUICK_CLIENTS = 48, 4
"""48 is the least that any server takes."""
STARTED_AT_ONCE: Final = 8
PAIRS, QUICK_PAIRS = 16, 2
SECONDS, QUICK_SECONDS = 2, 1
KERNEL_STEPS: Final = 4000
"""About 0.1 ms of arithmetic: a crowd keeps the GPU full, and its clients wait for one another asleep."""

CPU_BAR: Final = 0.5
"""Percent of one core."""
RATIO_BAR: Final = 0.999


def measure(bench: Bench) -> Iterator[Finding]:
    """The guard idle; then, in pairs, a round of work of either crowd."""
    count = bench.runs(CLIENTS, QUICK_CLIENTS)
    pairs = bench.runs(PAIRS, QUICK_PAIRS)
    seconds = bench.runs(SECONDS, QUICK_SECONDS)
    work = Work(seconds=seconds, work=KERNEL_STEPS, controlled=True, rounds=pairs + 1, blocking=True)
    with bench.stock() as stock, bench.guard() as guard, Clients() as clients:
        yield _cpu("CPU time of the guard, no client", [_idle(guard, seconds) for _ in range(bench.runs(4, 1))])
        ours = _crowd(bench, clients, guard, count, work)
        theirs = _crowd(bench, clients, stock, count, work)
        if not bench.programs.simulated:
            yield from _watching(guard, count)
        _round(theirs)
        _round(ours)  # warm: clocks, and the looks for late address spaces are over
        rates: list[float] = []
        peer: list[float] = []
        shares: list[Share] = []
        for order in alternating(pairs):
            for through_guard in order:
                before = usage(guard.pid)
                rate = _round(ours if through_guard else theirs)
                (rates if through_guard else peer).append(rate)
                if through_guard:
                    shares.append(share(guard.pid, before, usage(guard.pid)))
            bench.say(f"pair {len(shares)} of {pairs}: {rates[-1] / peer[-1]:.4f}, guard {shares[-1].total:.3f} %")
        for client in (*ours, *theirs):
            client.stop()
        failed = [outcome for client in (*ours, *theirs) if not (outcome := client.finish()).ok]
    yield all_of("clients finish", 2 * count - len(failed), 2 * count, "clients", note=_described(failed))
    yield _cpu(f"CPU time of the guard, {count} clients at work", shares)
    yield from _throughput(count, rates, peer)


def _crowd(bench: Bench, clients: Clients, target: Target, count: int, work: Work) -> list[Client]:
    """Start ``count`` clients, some at a time: the server makes their contexts one after the other."""
    began = time.monotonic()
    crowd: list[Client] = []
    while len(crowd) < count:
        some = range(len(crowd), min(count, len(crowd) + STARTED_AT_ONCE))
        command = bench.programs.worker(work)
        started = [clients.start(command, target.pipe_directory, f"{target.name}-{index}") for index in some]
        for client in started:
            client.wait_for("first_kernel")
        crowd += started
    bench.say(f"{count} clients of {target.name} started in {time.monotonic() - began:.0f} s")
    return crowd


def _round(crowd: list[Client]) -> float:
    """Kernels per second of all together in a round of theirs."""
    now = time.monotonic()
    for client in crowd:
        client.go()
    total = 0.0
    for client in crowd:
        done = client.wait_for("round", after=now)
        total += done.number("iterations") / done.number("seconds")
    return total


def _idle(guard: Guard, seconds: float) -> Share:
    before = usage(guard.pid)
    time.sleep(seconds)
    return share(guard.pid, before, usage(guard.pid))


def _watching(guard: Guard, count: int) -> Iterator[Finding]:
    """A sensor that sees nothing costs nothing: what is measured here is all of them."""
    # Without our change to the kernel module, `kmod` has nothing to hear.
    sensors = [sensor for sensor in guard.sensors() if sensor.present or sensor.name != "kmod"]
    absent = "; ".join(f"{sensor.name}: {sensor.detail}" for sensor in sensors if not sensor.present)
    yield all_of("sensors present", sum(sensor.present for sensor in sensors), len(sensors), "sensors", note=absent)
    watches = guard.watches()
    reasons = "; ".join(sorted({watch.reason for watch in watches if not watch.watched}))
    yield all_of(
        "clients whose address space is watched",
        sum(watch.watched for watch in watches),
        count,
        "clients",
        note=reasons,
    )


def _cpu(name: str, shares: list[Share]) -> Finding:
    totals = [each.total for each in shares]
    main = sum(each.main for each in shares) / len(shares)
    others = sum(each.others for each in shares) / len(shares)
    return sampled(
        name,
        totals,
        unit="% of one core",
        bar=f"every window < {CPU_BAR} %",
        holds=max(totals) < CPU_BAR,
        note=f"on average {main:.3f} % in the main thread, {others:.3f} % in all others",
    )


def _throughput(count: int, rates: list[float], peer: list[float]) -> Iterator[Finding]:
    each = ratios(rates, peer)
    yield sampled(
        f"throughput of {count} clients, guard over stock (paired ratios)",
        each,
        unit="",
        bar=f"median >= {RATIO_BAR}",
        holds=median(each) >= RATIO_BAR,
        note="pairs: " + " ".join(f"{value:.4f}" for value in each),
    )
    yield sampled(
        f"throughput of {count} clients",
        rates,
        unit="kernels/s",
        bar=f">= {RATIO_BAR} of stock",
        holds=median(rates) >= RATIO_BAR * median(peer),
        peer=peer,
    )


def _described(failed: list[Outcome]) -> str:
    if not failed:
        return ""
    more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return failed[0].describe() + more


MEASUREMENT: Final = Measurement(
    "steady_cost", "CPU time and throughput with a full server's clients, against stock, paired", measure
)
