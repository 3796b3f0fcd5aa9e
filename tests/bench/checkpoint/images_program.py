"""What images cost: how fast one is restored, beside disk and bus, and what fine-tunes of one model share.

Events: `restored` (bytes and seconds, of them those of each step; rates of the disk and of the bus in bytes a second),
`shared` (bytes of all images, and bytes in the store).
"""

import argparse
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from mpsguard import client
from mpsguard.images import checkpoints, membership
from mpsguard.images.checkpoints import restore as restoring
from mpsguard.vault.client import mapped
from mpsguard.vault.client.torch_regions import backend_of
from tests.bench.checkpoint.laps import Laps
from tests.bench.checkpoint.telling import emit, run
from tests.bench.checkpoint.verifier import whole

WITHIN = 120.0
READERS = 32
_PIECE = 2 << 20


def files_of(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() and path.stat().st_size >= _PIECE]


def forget(paths: list[Path]) -> None:
    """Have the kernel drop what it has of these files in memory; a tmpfs keeps it."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def disk_rate(paths: list[Path]) -> float:
    """Bytes a second of reading all files by many threads, without doing anything with them."""

    def read(path: Path) -> int:
        with path.open("rb", buffering=0) as file:
            return file.readinto(buffers[hash(path) % READERS]) or 0

    buffers = [bytearray(_PIECE) for _ in range(READERS)]
    forget(paths)
    began = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        total = sum(pool.map(read, paths))
    return total / (time.perf_counter() - began)


def bus_rate(device: str, size: int) -> float:
    """Bytes a second from pinned memory to the GPU, for ``size`` bytes: the best of 4."""
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device != "cpu")
    there = torch.empty(size, dtype=torch.uint8, device=device)
    rates = []
    for _ in range(4):
        began = time.perf_counter()
        there.copy_(host)
        if device != "cpu":
            torch.cuda.synchronize()
        rates.append(size / (time.perf_counter() - began))
    del there
    if device != "cpu":
        torch.cuda.empty_cache()  # what is measured next may be memory
    return max(rates)


def watched(laps: Laps, device: str) -> Laps:
    """Have the steps of restoring say how long they take; those of the GPU not without one."""
    laps.watch(restoring, "fill", "read and digested")
    laps.watch(restoring, "give", "given to the vault")
    if device != "cpu":
        from mpsguard.images.checkpoints import cuda_target  # noqa: PLC0415 - needs cuda-bindings

        laps.watch(cuda_target.CudaFiller, "__init__", "pinned")
        laps.watch(cuda_target.CudaTarget, "__init__", "allocated")
        laps.watch(cuda_target.CudaTarget, "digests", "of it digested")
    return laps


def restore(options: argparse.Namespace) -> None:
    with (
        client.join("restored-from", keep=60) as session,
        mapped.open_or_create(session, backend_of(options.device), "memory", options.size) as memory,
    ):
        content = whole(memory, options.device)
        content.view(torch.int32).random_()
        checkpoints.of(session, store=options.store, buffers=2 << 30)
        session.publish(b"1")
        checkpoints.of(session).take("restored").wait(WITHIN)
        del content
    session = client.join("restored-from")
    session.release()
    session.close()
    torch.cuda.empty_cache()
    paths = files_of(options.store)
    bus = bus_rate(options.device, 1 << 30 if options.device != "cpu" else 16 << 20)
    for number in range(options.rounds):
        disk = disk_rate(paths)
        forget(paths)
        began = time.perf_counter()
        with (
            watched(Laps(), options.device) as laps,
            membership.join(f"restored-{number}", keep=5, image="restored", store=options.store) as session,
        ):
            took = time.perf_counter() - began
            session.release()
        steps = {step: sum(seconds) for step, seconds in laps.seconds.items()}
        emit("restored", size=options.size, seconds=took, steps=steps, disk=disk, bus=bus)


def share(options: argparse.Namespace) -> None:
    size = options.model
    with (
        client.join("fine-tunes", keep=60) as session,
        mapped.open_or_create(session, backend_of(options.device), "model", size) as memory,
    ):
        content = whole(memory, options.device)
        content.view(torch.int32).random_()
        checkpoints.of(session, store=options.store, buffers=1 << 30)
        session.publish(b"base")
        before = sum(path.stat().st_size for path in files_of(options.store))
        checkpoints.of(session).take("base").wait(WITHIN)
        length = size // 20
        for number in range(5):
            # A twentieth of it, elsewhere each time, as a fine-tune of some layers; the rest is the base model's.
            part = content[number * 3 * length : number * 3 * length + length]
            kept = part.clone()
            memory.writing(number * 3 * length, length)
            part.add_(1)
            checkpoints.of(session).take(f"tune-{number}").wait(WITHIN)
            memory.writing(number * 3 * length, length)
            part.copy_(kept)
        stored = sum(path.stat().st_size for path in files_of(options.store)) - before
        emit("shared", images=6 * size, stored=stored)
        del content, part


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", type=int, default=2 << 30)
    parser.add_argument("--model", type=int, default=1 << 30, help="0: no fine-tunes")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.model:
        share(options)
    restore(options)


if __name__ == "__main__":
    run(main)
