"""Makes models with random weights: a safetensors file and an image of each, and what each answers.

Events: `made` for each, with its seed, its name, its answer, its bytes, and the seconds of each step; then `rate`,
bytes a second from pinned memory to the GPU.
"""

import argparse
import time
from pathlib import Path

from safetensors.torch import save_file

from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.safetensors_file import opened, read_into
from mpsguard.images.store.store import ImageStore
from tests.bench.checkpoint.images_program import bus_rate
from tests.bench.checkpoint.telling import emit, run
from tests.bench.start.models import Skeleton

REGION = "model"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--kind", required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--files", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1)
    options = parser.parse_args()
    skeleton = Skeleton(options.kind, options.device)
    options.files.mkdir(parents=True, exist_ok=True)
    with ImageStore(options.store) as store:
        for seed in range(options.count):
            name = f"{options.kind}-{seed}"
            began = time.perf_counter()
            tensors = skeleton.random(seed)
            skeleton.bind(tensors)
            answer = skeleton.answer()
            skeleton.drop()
            answered = time.perf_counter()
            path = options.files / f"{name}.safetensors"
            save_file(tensors, path)
            del tensors
            saved = time.perf_counter()
            with opened(path, REGION) as file, store.begin(name) as draft:
                region = read_into(draft, file, path, REGION)
                draft.commit(Manifest.made_now("start", (region,), tensors=file.tensors))
            steps = {"answered": answered - began, "file": saved - answered, "image": time.perf_counter() - saved}
            emit("made", seed=seed, model=name, answer=answer, size=region.size, steps=steps)
    emit("rate", rate=bus_rate(options.device, region.size))


if __name__ == "__main__":
    run(main)
