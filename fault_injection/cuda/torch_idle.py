"""A training in PyTorch that is idle for a while: it trains, waits for a line on standard input, and trains on.

With `busy` as its argument it is not: behind the line it makes many steps, and in each fifth one alone it waits, for
its loss. It steps a small GPT-2 in bfloat16 by fused AdamW, from fixed seeds and with PyTorch's deterministic
algorithms, so that two runs can be compared bit by bit. Events: `start`, `idle`, `busy` (after some steps, if it is),
`went_on` (milliseconds: from the line until the first kernel after it had ended; busy, the longest time between two
losses), `result` (digest: of all losses, all parameters, tokens that the model wrote and a product of matrices), and
last `finished`, or `died` (code -1, name, call) after the line, or `failed` before it. The end of the input ends it.
Exit status: 0 finished, 3 died of a CUDA error, 4 failed. It runs under the interpreter that holds PyTorch, so it
imports nothing of this project.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

DIED, FAILED = 3, 4
_STEPS = 6
"""Before the line; one more, and as many, behind it."""
_BUSY_STEPS, _BUSY = 500, 15
"""Busy: behind the line, and before the event that says so."""
_LOOKED_AT = 5
"""Of so many losses, one is looked at."""
_VOCABULARY = 8192


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


class Training:
    """The model, its optimizer, one batch, and what came of the steps so far."""

    def __init__(self, torch: Any) -> None:
        """Make it on the GPU."""
        transformers = importlib.import_module("transformers")
        self._torch = torch
        torch.manual_seed(1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        config = transformers.GPT2Config(n_layer=4, n_embd=512, n_head=8, vocab_size=_VOCABULARY)
        self._model = transformers.GPT2LMHeadModel(config).cuda().to(torch.bfloat16)
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-4, fused=True)
        self._batch = torch.randint(0, _VOCABULARY, (8, 256), device="cuda")
        self._pinned = torch.randn(1000).pin_memory()
        self._losses: list[Any] = []

    def step(self, wait: bool = True) -> None:
        """Make one, and wait until it has ended unless told not to."""
        loss = self._model(self._batch, labels=self._batch).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._losses.append(loss.detach())
        if wait:
            self._torch.cuda.synchronize()

    def busy(self) -> float:
        """Make many steps without a wait for each; return the longest time between two losses, in seconds."""
        longest, last = 0.0, time.monotonic()
        for number in range(_BUSY_STEPS):
            self.step(wait=False)
            if number % _LOOKED_AT == 0:
                float(self._losses[-1])
                longest, last = max(longest, time.monotonic() - last), time.monotonic()
            if number == _BUSY:
                emit("busy")
        self._torch.cuda.synchronize()
        return longest

    def result(self) -> str:
        """Use the model and the pinned memory, and return the digest of everything."""
        torch = self._torch
        self._model.eval()
        with torch.no_grad():
            written = self._model.generate(self._batch[:1, :8], max_new_tokens=12, do_sample=False, pad_token_id=0)
        square = torch.randn(64, 64, device="cuda", dtype=torch.float64)
        copied = self._pinned.cuda(non_blocking=True)
        return digest(torch, [*self._losses, *self._model.parameters(), written, square @ square, copied])


def train(torch: Any, busy: bool) -> int:
    """Run it; the exit status."""
    told = False
    try:
        training = Training(torch)
        for _ in range(_STEPS):
            training.step()
        emit("idle")
        if not sys.stdin.readline():
            return 0
        told, begin = True, time.monotonic()
        if busy:
            emit("went_on", milliseconds=1e3 * training.busy())
            emit("result", digest=training.result())
            emit("finished")
            return 0
        torch.zeros(1, device="cuda").add_(1)
        torch.cuda.synchronize()
        emit("went_on", milliseconds=1e3 * (time.monotonic() - begin))
        for _ in range(1 + _STEPS):
            training.step()
        emit("result", digest=training.result())
    except RuntimeError as error:
        emit("died" if told else "failed", code=-1, name=str(error).splitlines()[0], call="torch")
        return DIED if told else FAILED
    emit("finished")
    return 0


def main() -> int:
    """Import PyTorch and run it."""
    # cuBLAS chooses the same algorithm each time only with a workspace of this form.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    emit("start")
    return train(importlib.import_module("torch"), sys.argv[1:] == ["busy"])


if __name__ == "__main__":
    # Straight out when the context is dead: PyTorch's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
