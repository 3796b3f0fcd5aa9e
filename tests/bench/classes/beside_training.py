"""Inference beside training: the tails of five services, and what the training pays for them."""

from collections import defaultdict
from collections.abc import Iterator
from statistics import median
from typing import Final

from tests.bench.classes.torch_service import Round, TorchService, beside
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.guard import Options

RATE: Final = 100.0
"""Requests a second, evenly."""
SECONDS: Final = 1.8
ROUNDS, QUICK_ROUNDS = 5, 1
SHARE: Final = 82
"""Of the training. It pays nearly what it is denied: on an H200 it kept 0.87 of its rate at 80 %."""
LOWER, TRAINING = 6.0, 0.88
"""Bars: how much lower p99 must be than under plain MPS, and how much of its rate there the training must keep."""
MODELS: Final = {
    "gpt2": "GPT-2, 64 tokens",
    "mobilenet": "MobileNetV2, batch 1",
    "resnet50": "ResNet-50, batch 1",
    "resnet50-8": "ResNet-50, batch 8",
    "bert": "BERT-shaped encoder, 128 tokens",
}
WIDE: Final = ("resnet50-8",)
"""Those that fill more SMs than the training leaves, and wait for its blocks with either lever: told, without a bar."""
CLASSES: Final = {
    "critical": 'priority = "normal"',
    "low": 'priority = "below_normal"',
    "share": f"sm_share = {SHARE}",
    "both": f'priority = "below_normal", sm_share = {SHARE}',
}
ARMS: Final = {"plain": "plain MPS", "low": "priority", "share": f"share of {SHARE} %", "both": "both"}
"""The training's class, and what is said of it; ``plain`` is the stock daemon."""


def measure(bench: Bench) -> Iterator[Finding]:
    """Every arm in every round, in an order that turns, with processes that live throughout."""
    found: dict[tuple[str, str], list[Round]] = defaultdict(list)
    rates: dict[tuple[str, str], list[float]] = defaultdict(list)
    with bench.stock() as stock, bench.guard(options=Options(classes=CLASSES)) as guard, Clients() as clients:
        chosen = {arm: stock.pipe_directory if arm == "plain" else guard.pipe_directory / arm for arm in ARMS}
        trainings = {
            arm: TorchService(bench, clients, ["train"], where, f"training-{arm}") for arm, where in chosen.items()
        }
        theirs = TorchService(bench, clients, [*MODELS], stock.pipe_directory, "services-stock")
        ours = TorchService(bench, clients, [*MODELS], guard.pipe_directory / "critical", "services-critical")
        sms = {arm: training.prepared() for arm, training in trainings.items()}
        theirs.prepared()
        ours.prepared()
        bench.say(f"  SMs of the training: {sms}")
        for number in range(bench.runs(ROUNDS, QUICK_ROUNDS)):
            for kind in MODELS:
                alone, _ = beside(theirs, None, kind, SECONDS / 2, RATE)
                found[kind, "alone"].append(alone)
                for arm in [*ARMS][number % len(ARMS) :] + [*ARMS][: number % len(ARMS)]:
                    service = theirs if arm == "plain" else ours
                    answered, rate = beside(service, trainings[arm], kind, SECONDS, RATE)
                    found[kind, arm].append(answered)
                    rates[kind, arm].append(rate)
                said = ", ".join(f"{arm} {found[kind, arm][-1].p99:.2f}" for arm in ("alone", *ARMS))
                bench.say(f"  {kind} {number}: p99 ms {said}")
    for kind in MODELS:
        yield from _rows(
            kind, {arm: found[kind, arm] for arm in ("alone", *ARMS)}, {arm: rates[kind, arm] for arm in ARMS}
        )


def _rows(kind: str, found: dict[str, list[Round]], rates: dict[str, list[float]]) -> Iterator[Finding]:
    title = MODELS[kind]
    plain = [each.p99 for each in found["plain"]]
    for arm, said in {"alone": "alone", **ARMS}.items():
        p50 = median(each.p50 for each in found[arm])
        yield sampled(
            f"{title}, {RATE:g} requests/s beside training, {said}: p99",
            [each.p99 for each in found[arm]],
            unit="ms",
            bar="reported",
            holds=True,
            note=f"p50 {p50:.2f} ms" + (f"; {median(rates[arm]):.1f} steps/s" if arm in rates else ""),
        )
    for arm in ("low", "share", "both"):
        lower = [before / each.p99 for before, each in zip(plain, found[arm], strict=True)]
        kept = [mine / theirs for mine, theirs in zip(rates[arm], rates["plain"], strict=True)]
        claimed = arm == "both" and kind not in WIDE
        yield sampled(
            f"{title}, {ARMS[arm]}: p99 of plain MPS over its",
            lower,
            unit="",
            bar=f"median >= {LOWER:g}" if claimed else "reported",
            holds=median(lower) >= LOWER or not claimed,
        )
        yield sampled(
            f"{title}, {ARMS[arm]}: training's rate over that under plain MPS",
            kept,
            unit="",
            bar=f"median >= {TRAINING:g}" if claimed else "reported",
            holds=median(kept) >= TRAINING or not claimed,
        )


MEASUREMENT: Final = Measurement(
    "beside_training", "five services beside training: plain MPS, priority, share, both", measure
)
