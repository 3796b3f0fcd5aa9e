"""The PyTorch programs of `fault_injection/cuda/torch_services.py`: started, and asked for rounds."""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.core.bench import Bench
from tests.bench.core.client import Client, Clients
from tests.bench.core.events import Event
from tests.bench.core.programs import CUDA
from tests.bench.core.statistics import percentile

PROGRAM: Final = CUDA / "torch_services.py"
PREPARED: Final = 240.0
"""Seconds: PyTorch from a cold disk, for a dozen processes at once."""
_LEAD: Final = 0.2
"""Seconds that a load has run before its neighbour is measured, and that it runs on afterwards."""


@dataclass(frozen=True)
class Round:
    """What a service answered in a round."""

    latencies: tuple[float, ...]
    """ms."""
    begin: float
    end: float
    """Monotonic seconds."""
    seconds: float
    """For which requests came: an overloaded service answers on behind that."""

    @property
    def p50(self) -> float:
        """ms."""
        return percentile(self.latencies, 0.5)

    @property
    def p99(self) -> float:
        """ms."""
        return percentile(self.latencies, 0.99)

    def within(self, limit: float) -> float:
        """Answers in a second that took at most so many ms."""
        return sum(each <= limit for each in self.latencies) / self.seconds


class TorchService:
    """One process with some models, or with the training loop."""

    def __init__(
        self,
        bench: Bench,
        clients: Clients,
        kinds: Sequence[str],
        directory: Path,
        label: str,
        *,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        device = ["--device", "cpu"] if bench.programs.simulated else []
        self._client: Client = clients.start(
            [sys.executable, str(PROGRAM), *kinds, *device], directory, label, variables
        )
        self._asked = self._seconds = 0.0

    def prepared(self) -> int:
        """Wait until it can begin; the SMs that the driver gives it, 0 without a GPU."""
        self._client.wait_for("prepared", PREPARED)
        context = self._client.seen("first_kernel")
        return 0 if context is None else int(context.number("sms"))

    def ask(self, kind: str, seconds: float, rate: float = 0.0, seed: int | None = None) -> None:
        """Begin a round."""
        self._asked, self._seconds = time.monotonic(), seconds
        asked: dict[str, Any] = {"kind": kind, "seconds": seconds, "rate": rate}
        self._client.say(json.dumps(asked if seed is None else {**asked, "seed": seed}))

    def begun(self) -> float:
        """Wait for the beginning of the round; when it was."""
        return self._client.wait_for("begin", after=self._asked).monotonic

    def answers(self) -> Round:
        """Wait for the end of a service's round."""
        begin, told = self.begun(), self._told()
        found: Any = told.members["latencies_us"]
        return Round(tuple(each / 1000 for each in found), begin, told.monotonic, self._seconds)

    def steps(self) -> list[float]:
        """Wait for the end of a training round: when steps ended, monotonic seconds."""
        found: Any = self._told().members["steps"]
        return list(found)

    def _told(self) -> Event:
        return self._client.wait_for("round", after=self._asked)


def beside(
    service: TorchService, training: TorchService | None, kind: str, seconds: float, rate: float
) -> tuple[Round, float]:
    """A round of a service beside a training loop, if there is one; what it answered, and the loop's steps a second."""
    if training is not None:
        training.ask("train", seconds + 2 * _LEAD)
        training.begun()
        time.sleep(_LEAD)  # of ordinary work
    service.ask(kind, seconds, rate)
    answered = service.answers()
    if training is None:
        return answered, 0.0
    return answered, steps_a_second(training.steps(), answered.begin, answered.end)


def steps_a_second(steps: Sequence[float], begin: float, end: float) -> float:
    """The rate of the steps that ended within a time; 0 if there are not two."""
    inside = [each for each in steps if begin <= each <= end]
    return (len(inside) - 1) / (inside[-1] - inside[0]) if len(inside) > 1 else 0.0
