"""PyTorch programs that share a GPU: inference services with a CUDA graph each, and a training loop.

`torch_services.py KIND...`: builds what is named, says `prepared`, and waits. Each line on standard input is a round, a
JSON object: `kind`, `seconds`, and of a service `rate`, requests in a second (0: each behind the other), and `seed`
(present: they come at random, as a Poisson process; absent: evenly). The event `round` says: of a service
`latencies_us`, a list, each from the moment when the request was due to its answer; of `train` `steps`, a list of the
monotonic times at which steps ended. The end of the input ends the program. With `--device cpu` the models are tiny.
It runs under the interpreter that holds PyTorch, so it imports nothing of this project; no weights are loaded, they are
random. Exit status: 0 finished, 2 usage, 4 failed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import sys
import time
from collections.abc import Callable
from typing import Any

FAILED = 4
_WARM_UP = 3
Request = Callable[[], object]


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def transformer(torch: Any, *, layers: int, width: int, heads: int, vocabulary: int, length: int, causal: bool) -> Any:
    """A transformer of GPT-2's shape, or of BERT's: the same without the mask."""
    functional = torch.nn.functional

    class Block(torch.nn.Module):  # type: ignore[misc]  # PyTorch is loaded late
        def __init__(self) -> None:
            super().__init__()
            self.norms = torch.nn.ModuleList([torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)])
            self.mixed, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
            self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

        def forward(self, hidden: Any) -> Any:
            rows, count, _ = hidden.shape
            mixed = self.mixed(self.norms[0](hidden)).view(rows, count, 3, heads, width // heads)
            query, key, value = mixed.permute(2, 0, 3, 1, 4)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
            hidden = hidden + self.out(seen.transpose(1, 2).reshape(rows, count, width))
            return hidden + self.down(functional.gelu(self.up(self.norms[1](hidden))))

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words = torch.nn.Embedding(vocabulary, width)
            self.places = torch.nn.Parameter(torch.zeros(length, width))
            self.blocks = torch.nn.Sequential(*[Block() for _ in range(layers)])
            self.norm = torch.nn.LayerNorm(width)

        def forward(self, words: Any, every: bool) -> Any:
            hidden = self.norm(self.blocks(self.words(words) + self.places[: words.shape[1]]))
            return (hidden if every else hidden[:, -1:]) @ self.words.weight.t()

    return Model()


class Builder:
    """Makes services on one device."""

    def __init__(self, device: str) -> None:
        self.torch = importlib.import_module("torch")
        self.device = device
        self.small = device == "cpu"
        self.torch.manual_seed(2026)

    def service(self, kind: str) -> Request:
        """A function that answers one request of that kind, `NAME` or `NAME-BATCH`."""
        name, _, batch = kind.partition("-")
        rows = int(batch or 1)
        with self.torch.no_grad():
            if name in ("gpt2", "bert"):
                model, shape = (
                    self._language(causal=name == "gpt2"),
                    (rows, 8 if self.small else 64 if name == "gpt2" else 128),
                )
                words = self.torch.zeros(shape, dtype=self.torch.long, device=self.device)
                return self._captured(lambda: model(words, every=False))
            model = self._half(self._vision(name))
            images = self.torch.randn(rows, 3, 224, 224, device=self.device)
            images = images if self.small else images.half().contiguous(memory_format=self.torch.channels_last)
            return self._captured(lambda: model(images))

    def _language(self, *, causal: bool) -> Any:
        sizes = (2, 32, 2, 128, 16) if self.small else (12, 768, 12, 50257 if causal else 30522, 512)
        layers, width, heads, vocabulary, length = sizes
        return self._half(
            transformer(
                self.torch, layers=layers, width=width, heads=heads, vocabulary=vocabulary, length=length, causal=causal
            )
        )

    def _vision(self, name: str) -> Any:
        if self.small:
            nn = self.torch.nn
            return nn.Sequential(nn.Conv2d(3, 4, 7, stride=7), nn.Flatten(), nn.LazyLinear(10))
        models = importlib.import_module("torchvision.models")
        model = {"mobilenet": models.mobilenet_v2, "resnet50": models.resnet50, "vgg16": models.vgg16}[name]()
        return model.to(memory_format=self.torch.channels_last)

    def _half(self, model: Any) -> Any:
        return model.eval().to(self.device) if self.small else model.eval().half().to(self.device)

    def _captured(self, call: Callable[[], Any]) -> Request:
        """The same work as a CUDA graph, waited for."""
        torch = self.torch
        if self.small:
            return call
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                call()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            kept = call()

        # The graph holds addresses: what it reads and writes must live as long as it does.
        def request(_kept: object = (call, kept)) -> None:
            graph.replay()
            torch.cuda.current_stream().synchronize()

        request()
        return request

    def training(self) -> Request:
        """A function that makes one step of a GPT-2 with 350M parameters in bfloat16 by AdamW, one step behind."""
        torch = self.torch
        sizes = (2, 32, 2, 128, 16) if self.small else (24, 1024, 16, 50257, 512)
        layers, width, heads, vocabulary, length = sizes
        model = transformer(
            torch, layers=layers, width=width, heads=heads, vocabulary=vocabulary, length=length, causal=True
        ).to(self.device)
        optimizer = torch.optim.AdamW(model.parameters(), fused=not self.small)
        words = torch.randint(vocabulary, (2 if self.small else 8, length), device=self.device)
        before: list[Any] = []

        def step() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(self.device, dtype=torch.bfloat16):
                logits = model(words, every=True)
                loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), words.flatten())
            loss.backward()
            optimizer.step()
            if not self.small:
                # The host is one step ahead of the GPU, as training loops are.
                event = torch.cuda.Event(blocking=True)
                event.record()
                before.append(event)
                if len(before) > 1:
                    before.pop(0).synchronize()

        for _ in range(_WARM_UP):
            step()
        return step


def serve(request: Request, seconds: float, rate: float, seed: int | None) -> list[int]:
    """The latencies of a round's requests in us, each from the moment at which it was due."""
    chance = random.Random(seed)
    begin = time.monotonic()
    found, due = [], begin
    while due < begin + seconds:
        while (left := due - time.monotonic()) > 0:
            if left > 0.0005:
                time.sleep(left - 0.0003)
        request()
        now = time.monotonic()
        found.append(int((now - due) * 1e6))
        if not rate:
            due = now
        else:
            due += 1 / rate if seed is None else chance.expovariate(rate)
        if now > begin + 2 * seconds:
            # Overloaded: what is still due is later than this by then, and later ones are later still.
            found += [int((now - due) * 1e6)] * int(max(0.0, begin + seconds - due) * rate)
            break
    return found


def train(step: Request, seconds: float) -> list[float]:
    """When the steps of a round ended."""
    ended = []
    due = time.monotonic() + seconds
    while time.monotonic() < due:
        step()
        ended.append(time.monotonic())
    return ended


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "kinds", metavar="kind", nargs="+", help="train, gpt2, bert, mobilenet, resnet50, vgg16; -BATCH"
    )
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    emit("start")
    try:
        builder = Builder(options.device)
        made = {kind: builder.training() if kind == "train" else builder.service(kind) for kind in options.kinds}
        if not builder.small:
            builder.torch.cuda.synchronize()
            sms = builder.torch.cuda.get_device_properties(0).multi_processor_count
            emit("first_kernel", sms=sms)
        emit("prepared")
        for line in sys.stdin:
            asked = json.loads(line)
            kind, seconds = asked["kind"], asked["seconds"]
            emit("begin", kind=kind)
            if kind == "train":
                emit("round", kind=kind, steps=train(made[kind], seconds))
            else:
                found = serve(made[kind], seconds, asked["rate"], asked.get("seed"))
                emit("round", kind=kind, latencies_us=found)
    except RuntimeError as error:
        emit("failed", code=-1, name=str(error).splitlines()[0], call="torch")
        return FAILED
    emit("finished")
    return 0


if __name__ == "__main__":
    # Straight out when the context is dead: PyTorch's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
