"""Answers requests for many models with GPU memory for some of them: by the pool's tiers, or by reloading files.

Events: `answered` (seconds, whether the model was on the GPU, whether the answer is right).
"""

import argparse
import json
import random
import time
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file

from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.device_image import GpuTiers, hold_on_gpu
from mpsguard.images.pool.image_tensors import tensors_of
from mpsguard.images.pool.pinned_arena import PinnedArena
from mpsguard.images.store.store import ImageStore
from tests.bench.checkpoint.images_program import forget
from tests.bench.checkpoint.telling import emit, run
from tests.bench.start.models import Skeleton
from tests.bench.start.place import WITHIN, same
from tests.bench.start.prepared import backend_for


def requests(count: int, models: int, seed: int) -> list[int]:
    """Models in the order of requests: the n-th most popular one is asked for with a weight of 1/n."""
    ranks = range(models)
    return random.Random(seed).choices(ranks, [1 / (rank + 1) for rank in ranks], k=count)


class Reloading:
    """Files, and the most recently used models on the GPU."""

    def __init__(self, files: Path, device: str, most: int) -> None:
        self._files, self._device, self._most = files, device, most
        self._held: OrderedDict[str, dict[str, torch.Tensor]] = OrderedDict()

    def answer(self, skeleton: Skeleton, name: str) -> tuple[list[float], bool]:
        """Return the model's answer, and whether it was there."""
        hit = name in self._held
        if not hit:
            if len(self._held) >= self._most:
                self._held.popitem(last=False)
            path = self._files / f"{name}.safetensors"
            forget([path])
            self._held[name] = load_file(path, device=self._device)
        self._held.move_to_end(name)
        skeleton.bind(self._held[name])
        try:
            return skeleton.answer(), hit
        finally:
            skeleton.drop()


class Pooled:
    """The pool's tiers."""

    def __init__(self, socket: Path, store: Path, device: str) -> None:
        backend, pool = backend_for(device), PoolConnection(socket, deadline=WITHIN)
        self._tiers = GpuTiers(pool, ImageStore(store), PinnedArena(pool, backend), backend)

    def answer(self, skeleton: Skeleton, name: str) -> tuple[list[float], bool]:
        """Return the model's answer, and whether it was there."""
        with (
            self._tiers.store.open(name) as image,
            hold_on_gpu(self._tiers, image, within=WITHIN) as held,
        ):
            skeleton.bind(tensors_of(held))
            try:
                return skeleton.answer(), not held.made
            finally:
                skeleton.drop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--requests", type=int, required=True)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--most", type=int, required=True)
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--store", type=Path)
    options = parser.parse_args()
    expected = json.loads(options.answers.read_text())
    names = list(expected)
    skeleton = Skeleton(options.kind, options.device)
    skeleton.warm()
    server = (
        Reloading(options.files, options.device, options.most)
        if options.socket is None
        else Pooled(options.socket, options.store, options.device)
    )
    for rank in requests(options.requests, len(names), 1):
        began = time.perf_counter()
        answer, hit = server.answer(skeleton, names[rank])
        seconds = time.perf_counter() - began
        emit("answered", seconds=seconds, hit=int(hit), right=int(same(answer, expected[names[rank]])))


if __name__ == "__main__":
    run(main)
