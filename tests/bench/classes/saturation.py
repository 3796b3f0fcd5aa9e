"""Three services on one GPU, of which one is critical: at the load at which it is full under plain MPS, and below.

Requests come at random. A load of 1 would keep the GPU busy all the time if the services ran one after the other: each
service has a third of it.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median
from typing import Final

from tests.bench.classes.torch_service import Round, TorchService
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.guard import Options

CRITICAL: Final = "gpt2"
OTHERS: Final = ("resnet50-32", "bert-32")
LOADS: Final = (0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5)
BEHIND: Final = 1.1
"""A service is full when it needs that many times as long for its requests as they took to come."""
OBJECTIVE: Final = 4.0
"""Times the lone median latency of each service: an answer within that counts."""
SECONDS, SEARCH_SECONDS, LONE_SECONDS = 2.5, 1.5, 0.7
ROUNDS, QUICK_ROUNDS = 5, 1
LOWER, GOODPUT = 13.0, 1.3
SHARES: Final = (40, 60)
CLASSES: Final = {
    "critical": 'priority = "normal"',
    **{f"both{share}": f'priority = "below_normal", sm_share = {share}' for share in SHARES},
}
ARMS: Final = {"plain": "plain MPS", **{f"both{share}": f"others at {share} %, below normal" for share in SHARES}}


class _Crew:
    """The three services on each way through the guard, and on the stock daemon."""

    def __init__(self, arms: Mapping[str, tuple[TorchService, Mapping[str, TorchService]]]) -> None:
        self._arms = arms

    def lone(self) -> dict[str, float]:
        """The median latency of each service alone, ms."""
        critical, others = self._arms["plain"]
        found = {}
        for kind, service in {CRITICAL: critical, **others}.items():
            service.ask(kind, LONE_SECONDS)
            found[kind] = service.answers().p50
        return found

    def round(self, arm: str, rates: Mapping[str, float], seconds: float, seed: int) -> dict[str, Round]:
        """All three at once."""
        critical, others = self._arms[arm]
        everyone = {CRITICAL: critical, **others}
        for number, (kind, service) in enumerate(everyone.items()):
            service.ask(kind, seconds, rates[kind], seed * len(everyone) + number)
        return {kind: service.answers() for kind, service in everyone.items()}


def measure(bench: Bench) -> Iterator[Finding]:
    """Search the load at which the critical one is full; then every arm there and two steps below, in turn."""
    found: dict[tuple[float, str], list[dict[str, Round]]] = defaultdict(list)
    with bench.stock() as stock, bench.guard(options=Options(classes=CLASSES)) as guard, Clients() as clients:

        def others(arm: str) -> dict[str, TorchService]:
            where = stock.pipe_directory if arm == "plain" else guard.pipe_directory / arm
            return {kind: TorchService(bench, clients, [kind], where, f"{kind}-{arm}") for kind in OTHERS}

        ours = TorchService(bench, clients, [CRITICAL], guard.pipe_directory / "critical", "critical")
        theirs = TorchService(bench, clients, [CRITICAL], stock.pipe_directory, "critical-stock")
        arms = {arm: (theirs if arm == "plain" else ours, others(arm)) for arm in ARMS}
        for critical, rest in arms.values():
            for service in (critical, *rest.values()):
                service.prepared()
        crew = _Crew(arms)
        lone = crew.lone()
        limits = {kind: OBJECTIVE * latency for kind, latency in lone.items()}
        bench.say(f"  alone, p50 ms: {', '.join(f'{kind} {latency:.2f}' for kind, latency in lone.items())}")

        def rates(load: float) -> dict[str, float]:
            return {kind: load / len(lone) * 1000 / latency for kind, latency in lone.items()}

        full = LOADS[-1]
        for load in LOADS:
            answered = crew.round("plain", rates(load), SEARCH_SECONDS, 99)
            bench.say(f"  plain MPS at {load:g}: {_said(answered, limits)}")
            first = answered[CRITICAL]
            if first.end - first.begin > BEHIND * first.seconds:
                full = load
                break
        below = LOADS[max(0, LOADS.index(full) - 2)]
        for number in range(bench.runs(ROUNDS, QUICK_ROUNDS)):
            for load in dict.fromkeys((full, below)):
                for arm in ARMS:
                    answered = crew.round(arm, rates(load), SECONDS, number)
                    found[load, arm].append(answered)
                    bench.say(f"  {arm} at {load:g}, {number}: {_said(answered, limits)}")
    for load in dict.fromkeys(load for load, _ in found):
        where = "where the critical one is full under plain MPS" if load == full else "below that"
        yield from _rows(
            f"three services at a load of {load:g}, {where}",
            load == full,
            lone,
            limits,
            {arm: found[load, arm] for arm in ARMS},
        )


def _rows(
    title: str,
    claimed: bool,
    lone: Mapping[str, float],
    limits: Mapping[str, float],
    found: Mapping[str, list[dict[str, Round]]],
) -> Iterator[Finding]:
    for arm, said in ARMS.items():
        yield sampled(
            f"{title}, {said}: p99 of the critical one",
            [each[CRITICAL].p99 for each in found[arm]],
            unit="ms",
            bar="reported",
            holds=True,
            note=f"alone p50 {lone[CRITICAL]:.2f} ms",
        )
        good = [_goodput(each, limits) for each in found[arm]]
        each_kind = {kind: median(each[kind].within(limit) for each in found[arm]) for kind, limit in limits.items()}
        yield sampled(
            f"{title}, {said}: answers in time",
            good,
            unit="answers/s",
            bar="reported",
            holds=True,
            note=", ".join(f"{kind} {value:.0f}" for kind, value in each_kind.items()),
        )
    for arm in [arm for arm in ARMS if arm != "plain"]:
        pairs = list(zip(found["plain"], found[arm], strict=True))
        lower = [before[CRITICAL].p99 / after[CRITICAL].p99 for before, after in pairs]
        more = [
            _goodput(after, limits) / _goodput(before, limits) for before, after in pairs if _goodput(before, limits)
        ]
        first = claimed and arm == f"both{SHARES[0]}"
        yield sampled(
            f"{title}, {ARMS[arm]}: the critical one's p99 under plain MPS over its",
            lower,
            unit="",
            bar=f"median >= {LOWER:g}" if first else "reported",
            holds=median(lower) >= LOWER or not first,
        )
        if more:
            yield sampled(
                f"{title}, {ARMS[arm]}: answers in time over those under plain MPS",
                more,
                unit="",
                bar=f"median >= {GOODPUT:g}" if first else "reported",
                holds=median(more) >= GOODPUT or not first,
            )


def _goodput(answered: Mapping[str, Round], limits: Mapping[str, float]) -> float:
    """Answers of all services in a second that came in time."""
    return sum(answered[kind].within(limit) for kind, limit in limits.items())


def _said(answered: Mapping[str, Round], limits: Mapping[str, float]) -> str:
    each = ", ".join(f"{kind} p99 {got.p99:.1f} ms" for kind, got in answered.items())
    return f"{each}; {_goodput(answered, limits):.0f} answers/s in time"


MEASUREMENT: Final = Measurement("saturation", "three services, one of them critical, where plain MPS is full", measure)
