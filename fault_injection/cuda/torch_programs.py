"""Programs like many, to be run unchanged under the preload: `torch_programs.py PROGRAM`, one of `PROGRAMS`.

Each does a fixed piece of work from fixed seeds with PyTorch's deterministic algorithms, so that two runs can be
compared bit by bit. Events: `start`, `result` (digest of all that it computed; what the program says of it besides),
`finished`. `--device` is the GPU to use. `allreduce` is one rank of `--world`; the ranks meet at the file `--meeting`.
Exit status: 0 finished, 2 usage, 4 failed. It runs under the interpreter that holds PyTorch, so it imports nothing of
this project.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

FAILED = 4
_STEPS = 20
_REPLAYS = 10
_MEET_WITHIN = datetime.timedelta(seconds=60)


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


def train(torch: Any, _options: argparse.Namespace) -> dict[str, object]:
    """Steps of a small convolutional network by Adam."""
    layers = [torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(64, 64, 3, stride=2)]
    model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64 * 15 * 15, 10)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    losses = []
    for _ in range(_STEPS):
        images, labels = torch.randn(256, 3, 32, 32, device="cuda"), torch.randint(10, (256,), device="cuda")
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {"digest": digest(torch, model.parameters()), "losses": [loss.hex() for loss in losses]}


def infer(torch: Any, _options: argparse.Namespace) -> dict[str, object]:
    """Batches of changing size through a transformer."""
    layer = torch.nn.TransformerEncoderLayer(1024, 16, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False).cuda().eval()
    with torch.no_grad():
        outputs = [model(torch.randn(8, length, 1024, device="cuda")) for length in (64, 512, 96, 300, 128)]
    return {"digest": digest(torch, outputs)}


def streams(torch: Any, _options: argparse.Namespace) -> dict[str, object]:
    """Work on four streams that hand tensors on, so that memory is freed in one that was allocated for another."""
    aside = [torch.cuda.Stream() for _ in range(4)]
    results, handed = [], torch.randn(1024, 1024, device="cuda")
    for step in range(60):
        stream = aside[step % len(aside)]
        stream.wait_stream(torch.cuda.current_stream() if step == 0 else aside[(step - 1) % len(aside)])
        with torch.cuda.stream(stream):
            handed.record_stream(stream)
            rows = 512 + 256 * (step % 7)
            weights = torch.randn(1024, rows, device="cuda")
            handed = torch.tanh(handed @ weights) @ weights.t() / rows
            if step % 10 == 9:
                results.append(handed.clone())
    torch.cuda.synchronize()
    return {"digest": digest(torch, [*results, handed])}


def graph(torch: Any, _options: argparse.Namespace) -> dict[str, object]:
    """A whole training step captured in a CUDA graph, and replayed with other inputs."""
    layers = [torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 1024)]
    model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    batch = torch.randn(512, 1024, device="cuda")

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(model(batch), batch)
        loss.backward()
        optimizer.step()
        return loss

    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        loss = step()
    losses = []
    for _ in range(_REPLAYS):
        batch.copy_(torch.randn(512, 1024, device="cuda"))
        captured.replay()
        losses.append(loss.item())
    return {"digest": digest(torch, model.parameters()), "losses": [each.hex() for each in losses]}


def gemm(torch: Any, _options: argparse.Namespace) -> dict[str, object]:
    """Large products by cuBLAS: whole and batched, in four precisions."""
    results = []
    for kind, tf32 in ((torch.float32, False), (torch.float32, True), (torch.float16, False), (torch.bfloat16, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        left, right = (torch.randn(8192, 8192, device="cuda").to(kind) for _ in range(2))
        results.append(left @ right)
        results.append(torch.bmm(left.view(64, 1024, 1024), right.view(64, 1024, 1024)))
    return {"digest": digest(torch, results)}


def allreduce(torch: Any, options: argparse.Namespace) -> dict[str, object]:
    """Sums over all ranks by NCCL, of whole numbers, so that the right answer is known; at last one in a CUDA graph."""
    distributed = importlib.import_module("torch.distributed")
    distributed.init_process_group(
        "nccl",
        init_method=f"file://{options.meeting}",
        rank=options.rank,
        world_size=options.world,
        timeout=_MEET_WITHIN,
        device_id=torch.device("cuda", options.device),
    )
    summed, right = [], True
    for length in (1, 1 << 10, 1 << 20, 1 << 24, 3 * (1 << 24) + 5):
        values = torch.arange(length, device="cuda", dtype=torch.float32) % 1024
        expected = values * sum(range(1, options.world + 1))
        values *= options.rank + 1
        distributed.all_reduce(values)
        right = right and torch.equal(values, expected)
        summed.append(values)
    static = torch.ones(1 << 20, device="cuda")
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        distributed.all_reduce(static)
    static.fill_(float(options.rank + 1))
    captured.replay()
    torch.cuda.synchronize()
    right = right and torch.equal(static, torch.full_like(static, sum(range(1, options.world + 1))))
    summed.append(static)
    found = {"digest": digest(torch, summed), "right": right, "nccl": list(torch.cuda.nccl.version())}
    # The graph holds what the communicator must give back.
    del captured
    distributed.destroy_process_group()
    return found


def _double(tensors: Any, done: Any) -> None:
    """The other process of `multiprocessing`."""
    torch = importlib.import_module("torch")
    for tensor in tensors.get():
        tensor.mul_(2)
    torch.cuda.synchronize()
    done.set()


def multiprocessing(torch: Any, _options: argparse.Namespace) -> dict[str, object]:
    """Tensors that another process changes in place, by `torch.multiprocessing`."""
    spawned = importlib.import_module("torch.multiprocessing").get_context("spawn")
    tensors, done = spawned.Queue(), spawned.Event()
    shared = [torch.randn(length, device="cuda") for length in (7, 1 << 16, 1 << 22)]
    wanted = [tensor * 2 for tensor in shared]
    torch.cuda.synchronize()
    other = spawned.Process(target=_double, args=(tensors, done), daemon=True)
    other.start()
    tensors.put(shared)
    if not done.wait(_MEET_WITHIN.total_seconds()):
        raise RuntimeError("the other process did not get the tensors")
    right = all(torch.equal(one, other) for one, other in zip(shared, wanted, strict=True))
    other.join(_MEET_WITHIN.total_seconds())
    return {"digest": digest(torch, shared), "right": right}


PROGRAMS: dict[str, Callable[[Any, argparse.Namespace], dict[str, object]]] = {
    "train": train,
    "infer": infer,
    "streams": streams,
    "graph": graph,
    "gemm": gemm,
    "allreduce": allreduce,
    "multiprocessing": multiprocessing,
}


def main() -> int:
    """Run one."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("program", choices=tuple(PROGRAMS))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--meeting", default="")
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args()
    # What cuBLAS takes so that its sums do not depend on how streams meet (PyTorch's notes on reproducibility).
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    emit("start")
    torch = importlib.import_module("torch")
    try:
        torch.cuda.set_device(options.device)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(2026)
        found = PROGRAMS[options.program](torch, options)
        torch.cuda.synchronize()
    except RuntimeError as error:
        emit("failed", code=-1, name=str(error).strip().splitlines()[0], call="torch")
        return FAILED
    emit("result", **found)
    emit("finished")
    return 0


if __name__ == "__main__":
    # Straight out when something failed: PyTorch's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
