"""The smallest case: a kernel of 10 us each millisecond beside a client that keeps the GPU full."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Any, Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Event
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.guard import Options
from tests.bench.core.programs import compile_cuda
from tests.bench.core.statistics import percentile

SECONDS: Final = 0.8
ROUNDS, QUICK_ROUNDS = 5, 1
SHARE: Final = 90
BAR_US, KEPT = 150.0, 0.98
SHORT, LONG = 100, 10_000
"""Blocks in us: of the first the GPU is given a new one within a tenth of a millisecond."""
CLASSES: Final = {
    "critical": 'priority = "normal"',
    "low": 'priority = "below_normal"',
    "share": f"sm_share = {SHARE}",
    "both": f'priority = "below_normal", sm_share = {SHARE}',
}
ARMS: Final = {"plain": "plain MPS", "low": "priority", "share": f"share of {SHARE} %", "both": "both"}
_CLAIMED: Final = {SHORT: "low", LONG: "share"}


def measure(bench: Bench) -> Iterator[Finding]:
    """Every arm in every round."""
    if bench.programs.simulated:
        raise SuiteError("a simulated GPU has no SMs to share")
    binary = str(compile_cuda("spin", bench.root))
    p99s: dict[tuple[int, str], list[float]] = defaultdict(list)
    p50s: dict[tuple[int, str], list[float]] = defaultdict(list)
    rates: dict[tuple[int, str], list[float]] = defaultdict(list)
    with bench.stock() as stock, bench.guard(options=Options(classes=CLASSES)) as guard, Clients() as clients:
        chosen = {arm: stock.pipe_directory if arm == "plain" else guard.pipe_directory / arm for arm in ARMS}
        loads: dict[tuple[int, str], Client] = {}
        for block in (SHORT, LONG):
            for arm, directory in chosen.items():
                argv = [binary, "load", "--seconds", f"{SECONDS + 0.4:g}", "--block-us", str(block)]
                loads[block, arm] = clients.start(argv, directory, f"load-{arm}-{block}")
                loads[block, arm].wait_for("first_kernel")
        probe = [binary, "probe", "--seconds", f"{SECONDS:g}"]
        theirs = clients.start(probe, stock.pipe_directory, "probe-stock")
        ours = clients.start(probe, guard.pipe_directory / "critical", "probe-critical")
        for each in (theirs, ours):
            each.wait_for("first_kernel")
        sms = {arm: int(loads[SHORT, arm].wait_for("context").number("sms")) for arm in ARMS}
        bench.say(f"  SMs of the load: {sms}")
        for _ in range(bench.runs(ROUNDS, QUICK_ROUNDS)):
            for block in (SHORT, LONG):
                for arm in ("alone", *ARMS):
                    probing = ours if arm in chosen and arm != "plain" else theirs
                    load = loads.get((block, arm))
                    latencies, rate = _round(probing, load)
                    p50s[block, arm].append(percentile(latencies, 0.5))
                    p99s[block, arm].append(percentile(latencies, 0.99))
                    rates[block, arm].append(rate)
    for block in (SHORT, LONG):
        title = f"10 us each ms beside kernels of 10 ms in blocks of {block} us"
        for arm, said in {"alone": "alone", **ARMS}.items():
            claimed = _CLAIMED[block] == arm
            yield sampled(
                f"{title}, {said}: p99",
                p99s[block, arm],
                unit="us",
                bar=f"median <= {BAR_US:g} us" if claimed else "reported",
                holds=median(p99s[block, arm]) <= BAR_US or not claimed,
                note=f"p50 {median(p50s[block, arm]):.0f} us",
            )
        for arm in ("low", "share", "both"):
            kept = [mine / theirs for mine, theirs in zip(rates[block, arm], rates[block, "plain"], strict=True)]
            claimed = block == SHORT and arm == _CLAIMED[block]
            yield sampled(
                f"{title}, {ARMS[arm]}: the load's rate over that under plain MPS",
                kept,
                unit="",
                bar=f"median >= {KEPT:g}" if claimed else "reported",
                holds=median(kept) >= KEPT or not claimed,
            )


def _round(probe: Client, load: Client | None) -> tuple[list[float], float]:
    """The probe's latencies in us, and the load's blocks in a second."""
    began = 0.0
    if load is not None:
        began = _go(load)
    at = _go(probe)
    latencies: Any = probe.wait_for("round", after=at).members["latencies_us"]
    if load is None:
        return latencies, 0.0
    done: Event = load.wait_for("round", after=began)
    return latencies, done.number("blocks") / done.number("seconds")


def _go(client: Client) -> float:
    """Begin a round; when it began."""
    last = client.all_seen("begin")
    client.go()
    return client.wait_for("begin", after=last[-1].monotonic if last else 0.0).monotonic


MEASUREMENT: Final = Measurement(
    "spin", "a short kernel beside one that fills the GPU: each lever alone, and both", measure
)
