"""A small PyTorch program that computes by CUDA graphs, by compiled kernels or by memory in stream order.

`torch_compiled.py KIND [busy]`, KIND one of `KINDS`. It makes steps, is idle until a line comes on standard input, and
makes more; with `busy` many, and in each fifth one alone it waits, for its loss. Each step depends on all before it,
from fixed seeds and with PyTorch's deterministic algorithms, so that two runs can be compared bit by bit. Events and
exit status: as of `torch_idle.py`; `failed` also where the compiler of a kernel fails. It runs under the interpreter
that holds PyTorch, so it imports nothing of this project.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

DIED, FAILED, USAGE = 3, 4, 2
_STEPS = 6
"""Before the line, and as many behind it."""
_BUSY_STEPS, _BUSY = 1000, 15
"""Busy: behind the line, and before the event that says so."""
_LOOKED_AT = 5
"""Of so many losses, one is looked at."""
_CYCLES = 8_000_000
"""Busy: how long a kernel of one thread takes in each step, about 5 ms, so that programs beside it lose no time."""
_WIDTH, _ROWS = 512, 256


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def digest(torch: Any, tensors: Iterable[Any]) -> str:
    """Of every bit of them."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return found.hexdigest()


def layers(torch: Any) -> Any:
    """The model: two layers with a norm."""
    nn = torch.nn
    made = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH), nn.LayerNorm(_WIDTH))
    return made.cuda()


class Inference:
    """One graph of an inference; what comes out of a step goes into the next one."""

    def __init__(self, torch: Any) -> None:
        """Capture it."""
        self._model = layers(torch)
        self._input = torch.randn(_ROWS, _WIDTH, device="cuda")
        with torch.no_grad():
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                for _ in range(3):
                    self._model(self._input)
            torch.cuda.current_stream().wait_stream(aside)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = self._model(self._input)
                self._loss = self._output.square().mean()

    def step(self) -> Any:
        """Make one; a number that depends on it."""
        self._graph.replay()
        self._input.add_(self._output).mul_(0.5)
        return self._loss.clone()

    def state(self) -> list[Any]:
        """All that another step depends on."""
        return [self._input, self._output]


class Training:
    """Steps of a training; `wrapped` is what is made of the model, given it and a batch."""

    def __init__(self, torch: Any, wrapped: Callable[[Any, Any], Any]) -> None:
        """Make the model on the GPU."""
        self._batch = torch.randn(_ROWS, _WIDTH, device="cuda")
        self._wanted = torch.randn(_ROWS, _WIDTH, device="cuda")
        self._model = layers(torch)
        self._forward = wrapped(self._model, self._batch)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, fused=True)

    def step(self) -> Any:
        """Make one; its loss."""
        loss = (self._forward(self._batch) - self._wanted).square().mean()
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return loss.detach().clone()

    def state(self) -> list[Any]:
        """All that another step depends on, but for the optimizer's moments, which the parameters show."""
        return list(self._model.parameters())


def graphed(torch: Any) -> Training:
    """Its passes forward and back as graphs."""
    return Training(torch, lambda model, batch: torch.cuda.make_graphed_callables(model, (batch.clone(),)))


def compiled(torch: Any) -> Training:
    """Its kernels compiled."""
    return Training(torch, lambda model, _batch: torch.compile(model))


def overhead(torch: Any) -> Training:
    """Its kernels compiled, and launched by graphs."""
    return Training(torch, lambda model, _batch: torch.compile(model, mode="reduce-overhead"))


def ordered(torch: Any) -> Training:
    """As it is."""
    return Training(torch, lambda model, _batch: model)


ORDERED = "ordered"
"""Kinds that begin so have their memory of cudaMallocAsync."""
KINDS: dict[str, Callable[[Any], Inference | Training]] = {
    "inference": Inference,
    "graphed": graphed,
    "compiled": compiled,
    "overhead": overhead,
    ORDERED: ordered,
    f"{ORDERED}-inference": Inference,
}


def steps(torch: Any, work: Inference | Training, busy: bool) -> tuple[list[Any], float]:
    """Make them; all losses, and the longest time between two that were looked at, in seconds."""
    losses: list[Any] = []
    longest, last = 0.0, time.monotonic()
    for number in range(_BUSY_STEPS if busy else _STEPS):
        if busy:
            torch.cuda._sleep(_CYCLES)
        losses.append(work.step())
        if not busy:
            torch.cuda.synchronize()
        elif number % _LOOKED_AT == 0:
            float(losses[-1])
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
        if busy and number == _BUSY:
            emit("busy")
    torch.cuda.synchronize()
    return losses, longest


def run(torch: Any, kind: str, busy: bool) -> int:
    """Run it; the exit status."""
    told = False
    try:
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        work = KINDS[kind](torch)
        losses, _ = steps(torch, work, busy=False)
        emit("idle")
        if not sys.stdin.readline():
            return 0
        told, begin = True, time.monotonic()
        if not busy:
            torch.zeros(1, device="cuda").add_(1)
            torch.cuda.synchronize()
            emit("went_on", milliseconds=1e3 * (time.monotonic() - begin))
        more, longest = steps(torch, work, busy)
        if busy:
            emit("went_on", milliseconds=1e3 * longest)
        emit("result", digest=digest(torch, [*losses, *more, *work.state()]))
    except RuntimeError as error:
        emit("died" if told else "failed", code=-1, name=str(error).splitlines()[0], call="torch")
        return DIED if told else FAILED
    emit("finished")
    return 0


def main() -> int:
    """Import PyTorch and run it."""
    kind = sys.argv[1] if len(sys.argv) > 1 else ""
    if kind not in KINDS:
        sys.stderr.write(f"usage: torch_compiled.py {'|'.join(KINDS)} [busy]\n")
        return USAGE
    # cuBLAS chooses the same algorithm each time only with a workspace of this form; the compiler without measurements.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("TORCHINDUCTOR_DETERMINISTIC", "1")
    # Not a process for each core, of each of many programs.
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if kind.startswith(ORDERED):
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "backend:cudaMallocAsync"
    emit("start")
    return run(importlib.import_module("torch"), kind, sys.argv[2:] == ["busy"])


if __name__ == "__main__":
    # Straight out when the context is dead: PyTorch's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
