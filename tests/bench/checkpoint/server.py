"""A token loop with sealed weights and a cache of keys and values, both in regions: the gaps between its tokens.

Like a serving engine, it replays a CUDA graph for each token, and keeps what it has from Python's collector: otherwise
a token is some 400 launches, and the gaps are those of the processor's other work.

Events, with gaps in seconds from token to token: `started`, when the copier is ready (`starting`: gaps meanwhile);
`prepared`; `gaps`: `alone`, and `during` for each checkpoint from its request to its commit (of them in `publish`:
`publishing`), with what the cut took, and when each of the two began (CLOCK_MONOTONIC).
"""

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from mpsguard import client
from mpsguard.images import checkpoints
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.mapped import Memory
from mpsguard.vault.client.torch_regions import Spec, create_state_dict
from tests.bench.checkpoint.telling import emit, run

WITHIN: Final = 120.0
POSITIONS: Final = 1024
WARM: Final = 100
"""Tokens before the first one that is measured."""


class Shape(NamedTuple):
    layers: int
    width: int
    inner: int


SHAPES: Final = {"tiny": Shape(2, 64, 256), "gpt2": Shape(12, 768, 3072), "7b": Shape(32, 4096, 11008)}


class Decoder:
    """One sequence, batch 1, without a vocabulary: the shapes of a model's work for each token."""

    def __init__(self, session: client.Session, shape: Shape, device: str) -> None:
        self.session, self.shape = session, shape
        self.dtype = torch.float16 if device != "cpu" else torch.float32
        name = str(self.dtype).removeprefix("torch.")
        width, inner = shape.width, shape.inner
        weights = {}
        for layer in range(shape.layers):
            weights[f"{layer}/qkv"] = Spec(name, (3 * width, width))
            weights[f"{layer}/out"] = Spec(name, (width, width))
            weights[f"{layer}/up"] = Spec(name, (inner, width))
            weights[f"{layer}/down"] = Spec(name, (width, inner))
        self.weights = create_state_dict(session, "weights", weights, device)
        for tensor in self.weights.tensors.values():
            tensor.normal_(0.0, 0.02)
        self.weights.memory.region.seal()
        cache = {"kv": Spec(name, (POSITIONS, shape.layers, 2, width)), "now": Spec(name, (width,))}
        self.state = create_state_dict(session, "cache", cache, device)
        for tensor in self.state.tensors.values():
            tensor.zero_()
        self.state.tensors["now"].normal_()
        self.device = torch.device(device)
        self.token = 0
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.positions = torch.arange(POSITIONS, device=device)
        self.compute = self._compute if self.device.type == "cpu" else self._captured()

    @property
    def cache(self) -> Memory:
        return self.state.memory

    def step(self) -> None:
        """One token, published."""
        position = self.token % POSITIONS
        row, now = self.state.tensors["kv"][position], self.state.tensors["now"]
        self.cache.writing(row.data_ptr() - self.cache.va, row.numel() * row.element_size())
        self.cache.writing(now.data_ptr() - self.cache.va, now.numel() * now.element_size())
        self.position.fill_(position)
        self.compute()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.token += 1
        began = time.perf_counter()
        self.session.publish(b"%d" % self.token)
        self.publishing = time.perf_counter() - began
        """Seconds of the last publication."""

    def _captured(self) -> Callable[[], None]:
        stream = torch.cuda.Stream(self.device)
        with torch.cuda.stream(stream):
            # What libraries allocate and choose at their first call is no part of a graph.
            for _ in range(3):
                self._compute()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._compute()
        replay: Callable[[], None] = graph.replay
        return replay

    def _compute(self) -> None:
        with torch.no_grad():
            self._token()

    def _token(self) -> None:
        cache, now = self.state.tensors["kv"], self.state.tensors["now"]
        later = self.positions > self.position
        hidden = now
        for layer in range(self.shape.layers):
            weights: dict[str, Any] = {
                part: self.weights.tensors[f"{layer}/{part}"] for part in ("qkv", "out", "up", "down")
            }
            query, key, value = (weights["qkv"] @ hidden).chunk(3)
            cache[:, layer, 0].index_copy_(0, self.position, key[None])
            cache[:, layer, 1].index_copy_(0, self.position, value[None])
            scores = (cache[:, layer, 0] @ query * self.shape.width**-0.5).masked_fill(later, -torch.inf)
            hidden = hidden + weights["out"] @ (torch.softmax(scores, 0) @ cache[:, layer, 1])
            hidden = hidden + weights["down"] @ torch.nn.functional.gelu(weights["up"] @ hidden)
            hidden = torch.nn.functional.layer_norm(hidden, hidden.shape)
        now.copy_(hidden)


def gaps(decoder: Decoder, count: int) -> list[float]:
    found = []
    for _ in range(count):
        began = time.perf_counter()
        decoder.step()
        found.append(time.perf_counter() - began)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="gpt2")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=200, help="between two checkpoints")
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    with client.join("server", keep=60) as session:
        decoder = Decoder(session, SHAPES[options.shape], options.device)
        taking = checkpoints.of(session, store=options.store, buffers=1 << 30, spare=64 << 20)
        gaps(decoder, WARM)
        gc.collect()
        gc.freeze()
        # As a server does that must not stall: the copier is there before the first checkpoint.
        began = time.perf_counter()
        taking.start()
        starting = [time.perf_counter() - began]
        due = time.monotonic() + WITHIN
        while not taking.is_ready and time.monotonic() < due:
            starting += gaps(decoder, 1)
        emit("started", starting=starting)
        # The first checkpoint copies the weights; no other one does.
        for number in range(options.rounds + 1):
            alone_began = time.monotonic()
            alone = gaps(decoder, options.tokens)
            began = time.monotonic()
            checkpoint = taking.arm("server")
            during: list[float] = []
            publishing: list[float] = []
            due = time.monotonic() + WITHIN
            # It is armed first, then under way, and then neither.
            while checkpoint.ended is None and time.monotonic() < due:
                during += gaps(decoder, 1)
                publishing.append(decoder.publishing)
            ended = checkpoint.ended
            emit(
                "gaps",
                number=number,
                alone=alone,
                during=during,
                publishing=publishing,
                alone_began=alone_began,
                began=began,
                cut=taking.last_cut,
                copied=ended.copied if ended else 0,
                refused="" if ended is not None and ended.refusal is None else str(ended),
            )
            if number == 0:
                emit("prepared", size=decoder.weights.memory.size + decoder.cache.size)
            with ImageStore(options.store) as store:
                store.collect()


if __name__ == "__main__":
    run(main)
