"""Right-sizing: what three points predict of the time by share, and what the least share saves, over several models."""

from collections.abc import Callable, Iterator, Sequence
from statistics import mean
from typing import Final

from mpsguard.guard.sizing.model import least_share, with_floor
from mpsguard.guard.sizing.procedure import MOST_TRIES, STEP, Point, Sizing, SizingPlan, size
from tests.bench.classes.torch_service import TorchService
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, sampled
from tests.bench.core.stock import StockDaemon

MODELS: Final = {
    "gpt2": "GPT-2, 64 tokens",
    "gpt2-4": "GPT-2, 64 tokens, batch 4",
    "bert": "BERT-shaped encoder, 128 tokens",
    "mobilenet": "MobileNetV2, batch 1",
    "resnet50": "ResNet-50, batch 1",
    "resnet50-4": "ResNet-50, batch 4",
    "vgg16": "VGG-16, batch 1",
}
PLAN: Final = SizingPlan(shares=(10.0, 50.0, 100.0), slip=0.04, repeats=3)
SECONDS: Final = 0.4
FIT, SAVED, ERROR = 0.97, 25.0, 0.05
_VARIABLE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""By which `mpsguard-ctl rightsize` gives a command its share, too."""


class _Processes:
    """One process for each share and list of models, started before it is needed: PyTorch takes seconds to load."""

    def __init__(self, bench: Bench, clients: Clients, stock: StockDaemon) -> None:
        self._bench = bench
        self._clients = clients
        self._stock = stock
        self._running: dict[tuple[float, str], TorchService] = {}

    def start(self, share: float, kinds: Sequence[str]) -> None:
        """Start one, unless there is one for these."""
        missing = [kind for kind in kinds if (share, kind) not in self._running]
        if missing:
            variables = {_VARIABLE: f"{share:g}"}
            label = f"{'+'.join(missing)}-{share:g}"
            directory = self._stock.pipe_directory
            made = TorchService(self._bench, self._clients, missing, directory, label, variables=variables)
            self._running.update({(share, kind): made for kind in missing})

    def measure(self, kind: str) -> Callable[[float], float]:
        """A function that returns the median time of a request of that kind, in seconds, at a share."""

        def at(share: float) -> float:
            self.start(share, [kind])
            process = self._running[share, kind]
            process.prepared()
            process.ask(kind, SECONDS)
            return process.answers().p50 / 1000

        return at


def measure(bench: Bench) -> Iterator[Finding]:
    """All models, each alone on the GPU while it is measured."""
    found: dict[str, Sizing] = {}
    with bench.stock() as stock, Clients() as clients:
        processes = _Processes(bench, clients, stock)
        for share in PLAN.shares:
            processes.start(share, [*MODELS])
        for kind in MODELS:
            least, middle, most = ((share, processes.measure(kind)(share)) for share in PLAN.shares)
            model = with_floor(least, middle, most, beyond=PLAN.slip / 2)
            predicted = max(least_share(model, PLAN.slip), PLAN.shares[0])
            # The next one, too, in case the prediction is too small.
            for share in (predicted, min(predicted + STEP, PLAN.reference)):
                processes.start(share, [kind])
        for kind in MODELS:
            found[kind] = size(processes.measure(kind), PLAN)
            bench.say(f"  {kind}: {found[kind].share} %, R2 {found[kind].r_squared}, {found[kind].problem or 'found'}")
    for kind, title in MODELS.items():
        yield from _rows(title, found[kind])
    chosen = [each.share for each in found.values() if each.share is not None]
    saved = [100 - share for share in chosen]
    yield sampled(
        f"right-sizing of {len(MODELS)} models at a slip of {PLAN.slip:.0%}: SMs saved, on average",
        [mean(saved)] if saved else [0.0],
        unit="%",
        bar=f">= {SAVED:g} %, for all of them",
        holds=len(saved) == len(MODELS) and mean(saved) >= SAVED,
        note=", ".join(f"{title} {found[kind].share or 0:g} %" for kind, title in MODELS.items()),
    )


def _rows(title: str, sizing: Sizing) -> Iterator[Finding]:
    chosen: Point | None = sizing.chosen
    times = ", ".join(f"{each.share:g} %: {each.seconds * 1e3:.3f} ms" for each in sizing.points)
    fit = 0.0 if sizing.r_squared is None else sizing.r_squared
    yield sampled(
        f"right-sizing, {title}: R2 of m/t + b, with a floor if there is one, over all measured",
        [fit],
        unit="",
        bar=f">= {FIT:g}",
        holds=fit >= FIT,
        note=times,
    )
    if chosen is None:
        yield sampled(
            f"right-sizing, {title}: loss at the chosen share",
            [1.0],
            unit="",
            bar=f"<= {PLAN.slip:g}",
            holds=False,
            note=sizing.problem or "",
        )
        return
    yield sampled(
        f"right-sizing, {title}: loss at the chosen share of {chosen.share:g} %",
        [chosen.slip],
        unit="",
        bar=f"<= {PLAN.slip:g}",
        holds=chosen.slip <= PLAN.slip,
    )
    yield sampled(
        f"right-sizing, {title}: error of the time predicted for the chosen share",
        [abs(chosen.error)],
        unit="",
        bar=f"<= {ERROR:g}",
        holds=abs(chosen.error) <= ERROR,
    )


MEASUREMENT: Final = Measurement(
    "rightsizing",
    f"time by share from three points, over {len(MODELS)} models; {MOST_TRIES} shares tried at most",
    measure,
)
