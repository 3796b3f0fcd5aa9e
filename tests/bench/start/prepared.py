"""What the suite's warm workers execute; the environment says which model they are prepared for, and on what device."""

import json
import os
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final, cast

import psutil
import torch

from mpsguard.images.on_demand.profile import save_profile
from mpsguard.images.on_demand.torch_waiting import WaitingLayers
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.device_image import GpuTiers, copy_to_gpu, hold_on_gpu
from mpsguard.images.pool.device_on_demand import open_on_gpu
from mpsguard.images.pool.image_addresses import ImageAddresses
from mpsguard.images.pool.image_tensors import tensors_of
from mpsguard.images.pool.pinned_arena import PinnedArena
from mpsguard.images.pool.worker import Assigned, Serve, Warm, WorkerLostError
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.cuda.driver import CudaError
from mpsguard.vault.client.mapped.backend import CopyingBackend
from tests.bench.start.models import Skeleton
from tests.bench.start.place import DEVICE, IMAGE, KIND, NOTES, PINS, STORE

_WITHIN: Final = 120.0


def backend_for(device: str) -> CopyingBackend:
    if device == "cpu":
        from mpsguard.vault.client.mapped.host import HostBackend  # noqa: PLC0415 - simulated

        return HostBackend()
    from mpsguard.vault.client.cuda.driver import CudaBackend  # noqa: PLC0415 - needs cuda-bindings

    return CudaBackend()


def settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


class _Unpinned:
    """A backend that pins nothing: seconds of each preparation, for starts that copy nothing."""

    def pin(self, _address: int, _size: int) -> bool:
        return False


class _Worker:
    def __init__(self) -> None:
        from tests.bench.start.imports import SECONDS  # noqa: PLC0415 - which imports this module

        note = {"imports": SECONDS}
        began = last = time.perf_counter()

        def lap(step: str) -> None:
            nonlocal last
            note[step], last = time.perf_counter() - last, time.perf_counter()

        self.owned = ExitStack()
        self.device = os.environ[DEVICE]
        torch.zeros(1, device=self.device)
        backend = backend_for(self.device)
        lap("context")
        pool = PoolConnection(deadline=_WITHIN)
        pins = Path(os.environ[PINS]).exists()
        arena = PinnedArena(pool, backend if pins else cast("CopyingBackend", _Unpinned()))
        lap("pin")
        self.tiers = GpuTiers(pool, ImageStore(Path(os.environ[STORE])), arena, backend)
        # What is prepared for this image's addresses is right for all images of the same form.
        with self.tiers.store.open(os.environ[IMAGE]) as image:
            self.addresses = ImageAddresses(backend, image.manifest)
        lap("addresses")
        self.skeleton = Skeleton(os.environ[KIND], self.device)
        self.skeleton.bind(tensors_of(self.addresses))
        lap("objects")
        self.skeleton.record()
        lap("graph")
        self.layers = WaitingLayers(self.skeleton.model, self.addresses.regions)
        lap("hooks")
        self.addresses.clear()
        lap("cleared")
        # What it shares with the template is not counted.
        memory = psutil.Process().memory_full_info()
        note |= {
            "pins": int(pins),
            "pinned": int(arena.pinned),
            "all": time.perf_counter() - began,
            "recorded": int(self.skeleton.recorded),
            "resident": memory.uss,
        }
        with open(os.environ[NOTES], "a") as file:  # one write of a short line: whole among those of other workers
            file.write(json.dumps(note) + "\n")

    def check(self) -> None:
        """Find out whether the context is lost."""
        settle(self.device)

    def start(self, assigned: Assigned) -> Serve:
        try:
            return self._started(assigned)
        except (CudaError, RuntimeError) as error:
            # PyTorch's error of the accelerator is a RuntimeError.
            raise WorkerLostError(str(error)) from error

    def _started(self, assigned: Assigned) -> Serve:
        asked: dict[str, Any] = json.loads(assigned.payload)
        began = time.perf_counter()
        image = self.owned.enter_context(self.tiers.store.open(assigned.name))
        opened = time.perf_counter()
        arriving = None
        if asked["how"] == "demand":
            _, arriving = self.owned.enter_context(
                open_on_gpu(self.tiers, image, addresses=self.addresses, within=_WITHIN)
            )
        else:
            hold = hold_on_gpu if asked["how"] == "gpu" else copy_to_gpu
            self.owned.enter_context(hold(self.tiers, image, addresses=self.addresses, within=_WITHIN))
        filled = time.perf_counter()
        if arriving is not None:
            self.layers.wait_for(arriving, within=_WITHIN)
        if asked.get("busy"):
            self._be_busy(asked["busy"], asked["mark"])

        def serve(connection: socket.socket) -> None:
            # A graph cannot wait for a layer.
            answer = self.skeleton.answer() if arriving is not None else self.skeleton.quick_answer()
            told = {
                "answer": answer,
                "opened": opened - began,
                "filled": filled - began,
                "answered": time.perf_counter() - began,
            }
            connection.sendall(json.dumps(told).encode() + b"\n")
            if arriving is not None:
                arriving.ready()
                connection.sendall(json.dumps({"whole": time.perf_counter() - began}).encode() + b"\n")
                save_profile(self.tiers.store, assigned.name, arriving.profile())
            connection.recv(1)
            # The connection stays, so that no other worker prepares itself while the next start is timed.
            settle(self.device)
            self.owned.close()
            with suppress(OSError):  # the program may have ended
                connection.sendall(b"\n")
                connection.recv(1)
            # The next preparation waits for this end: not for the libraries' own.
            os._exit(0)

        return serve

    def _be_busy(self, seconds: float, mark: str) -> None:
        """Have the GPU work for a while, in the middle of a start."""
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.skeleton.quick_answer()
            settle(self.device)


def prepare() -> Warm:
    worker = _Worker()
    return Warm(worker.start, worker.check)
