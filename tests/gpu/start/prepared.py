"""What the suite's warm workers execute; the environment says which model they are prepared for, and on what device."""

import json
import os
import socket
import time
from contextlib import ExitStack
from typing import Any, Final

import torch

from mpsguard.client.cuda.driver import CudaError
from mpsguard.client.mapped.backend import CopyingBackend
from mpsguard.client.on_demand.profile import save_profile
from mpsguard.client.torch_regions.waiting import wait_for_layers
from mpsguard.images.store import ImageStore
from mpsguard.pool.connection import PoolConnection
from mpsguard.pool.device_image import copy_to_gpu, hold_on_gpu
from mpsguard.pool.device_on_demand import open_on_gpu
from mpsguard.pool.image_tensors import tensors_of
from mpsguard.pool.pinned_arena import PinnedArena
from mpsguard.pool.worker import Assigned, Serve, Warm, WorkerLostError
from tests.gpu.start.models import Skeleton
from tests.gpu.start.place import DEVICE, KIND, NOTES

_WITHIN: Final = 120.0


def backend_for(device: str) -> CopyingBackend:
    if device == "cpu":
        from mpsguard.client.mapped.host import HostBackend  # noqa: PLC0415 - simulated

        return HostBackend()
    from mpsguard.client.cuda.driver import CudaBackend  # noqa: PLC0415 - needs cuda-bindings

    return CudaBackend()


def settle(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


class _Worker:
    def __init__(self) -> None:
        began = time.perf_counter()
        self.device = os.environ[DEVICE]
        torch.zeros(1, device=self.device)
        self.backend = backend_for(self.device)
        self.pool = PoolConnection(deadline=_WITHIN)
        pinning = time.perf_counter()
        self.arena = PinnedArena(self.pool, self.backend)
        pinned = time.perf_counter()
        self.skeleton = Skeleton(os.environ[KIND], self.device)
        self.skeleton.warm()
        if self.device != "cpu":
            torch.cuda.empty_cache()
        note = {"pinned": int(self.arena.pinned), "pin": pinned - pinning, "all": time.perf_counter() - began}
        with open(os.environ[NOTES], "a") as file:  # one write of a short line: whole among those of other workers
            file.write(json.dumps(note) + "\n")
        self.owned = ExitStack()

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
        store = self.owned.enter_context(ImageStore(assigned.store))
        image = self.owned.enter_context(store.open(assigned.name))
        parts = (self.pool, store, image, self.arena, self.backend)
        arriving = None
        if asked["how"] == "demand":
            memory, arriving = self.owned.enter_context(open_on_gpu(*parts, within=_WITHIN))
        else:
            hold = hold_on_gpu if asked["how"] == "gpu" else copy_to_gpu
            memory = self.owned.enter_context(hold(*parts, within=_WITHIN))
        filled = time.perf_counter()
        self.skeleton.bind(tensors_of(memory))
        if arriving is not None:
            wait_for_layers(self.skeleton.model, arriving, within=_WITHIN)
        if asked.get("busy"):
            self._be_busy(asked["busy"], asked["mark"])

        def serve(connection: socket.socket) -> None:
            answer = self.skeleton.answer()
            told = {"answer": answer, "filled": filled - began, "answered": time.perf_counter() - began}
            if arriving is not None:
                arriving.ready()
                told["whole"] = time.perf_counter() - began
                save_profile(store, assigned.name, arriving.profile())
            connection.sendall(json.dumps(told).encode() + b"\n")
            connection.recv(1)
            # The connection stays, so that no other worker prepares itself while the next start is timed.
            settle(self.device)
            self.skeleton.drop()
            self.owned.close()
            connection.sendall(b"\n")
            connection.recv(1)

        return serve

    def _be_busy(self, seconds: float, mark: str) -> None:
        """Have the GPU work for a while, in the middle of a start."""
        with open(mark, "w") as file:
            file.write(str(os.getpid()))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.skeleton.answer()
            settle(self.device)


def prepare() -> Warm:
    worker = _Worker()
    return Warm(worker.start, worker.check)
