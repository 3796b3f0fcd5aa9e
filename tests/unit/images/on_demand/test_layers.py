"""Modules of PyTorch that wait for their parameters; on the processor."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from mpsguard.images.on_demand import ArrivalError, ArrivingImage, Profile, load_profile, open_on_demand, save_profile
from mpsguard.images.on_demand.destination import HostDestination, Piece, RegionAddresses
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from tests.late import Late
from tests.unit.images.store.samples import commit, some_bytes

torch = Late("torch")

LAYERS, WIDTH = 4, 724
"""Each layer takes 2 MiB, or nearly so."""


def model() -> Any:
    with torch.device("meta"):
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def test_layers_wait_for_their_own_pieces_and_a_run_records_the_order(tmp_path: Path) -> None:
    from mpsguard.images.on_demand.torch_waiting import wait_for_layers  # noqa: PLC0415 - needs PyTorch

    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH for _ in range(LAYERS)]
    padding = bytes(PIECE_SIZE - WIDTH * WIDTH * 4)
    data = b"".join(each.numpy().tobytes() + padding for each in weights)
    given = torch.ones(1, WIDTH)
    wanted = given
    for each in weights:
        wanted = wanted @ each.T
    with ImageStore(tmp_path / "store") as store:
        commit(store, "m", {"model": data})
        with store.open("m") as image:
            for _ in range(2):
                # The last layer is to come first: the others are waited for all the same.
                backwards = tuple(("model", index) for index in reversed(range(LAYERS)))
                profile = load_profile(store, image) or Profile("", backwards)
                arriving = open_on_demand(image, profile)
                region = arriving.regions["model"]
                built = model()
                state = {
                    f"{index}.weight": torch.frombuffer(
                        region.memory, dtype=torch.float32, count=WIDTH * WIDTH, offset=index * PIECE_SIZE
                    ).view(WIDTH, WIDTH)
                    for index in range(LAYERS)
                }
                built.load_state_dict(state, assign=True)
                hooks = wait_for_layers(built, arriving)
                with torch.no_grad():
                    answer = built(given)
                torch.testing.assert_close(answer, wanted)
                recorded = arriving.profile()
                assert recorded.pieces == tuple(("model", index) for index in range(LAYERS))
                save_profile(store, "m", recorded)
                hooks.remove()
                del region
                arriving.close()
                # Tensors keep the memory.
                torch.testing.assert_close(built(given), wanted)
    assert not [thread for thread in threading.enumerate() if thread.name == "on-demand"]


class GatedDestination(HostDestination):
    """Brings the pieces that it is allowed to, one after another."""

    readers = 1
    gate: threading.Semaphore

    def bring(self, pieces: Sequence[Piece]) -> None:
        """See `Destination.bring`."""
        assert self.gate.acquire(timeout=30)
        super().bring(pieces)


def test_threads_that_call_a_layer_at_once_wait_for_all_of_it(tmp_path: Path) -> None:
    from mpsguard.images.on_demand.torch_waiting import wait_for_layers  # noqa: PLC0415 - needs PyTorch

    with torch.device("meta"):
        layer = torch.nn.Linear(WIDTH, WIDTH)
    with ImageStore(tmp_path / "store") as store:
        commit(store, "m", {"weight": some_bytes("w", WIDTH * WIDTH * 4), "bias": some_bytes("b", WIDTH * 4)})
        with store.open("m") as image:
            destination = GatedDestination(image)
            destination.gate = threading.Semaphore(0)
            # A module waits for its last tensor first.
            arriving = ArrivingImage(image, Profile("", (("bias", 0), ("weight", 0))), destination)
            try:
                memory = {name: region.memory for name, region in arriving.regions.items()}
                weight = torch.frombuffer(memory["weight"], dtype=torch.float32).view(WIDTH, WIDTH)
                bias = torch.frombuffer(memory["bias"], dtype=torch.float32)
                layer.load_state_dict({"weight": weight, "bias": bias}, assign=True)
                wait_for_layers(layer, arriving, within=1.0)
                outcomes: list[str] = []

                def call() -> None:
                    try:
                        layer(torch.ones(1, WIDTH))
                        outcomes.append("answered")
                    except ArrivalError:
                        outcomes.append("not there")

                threads = [threading.Thread(target=call) for _ in range(8)]
                for thread in threads:
                    thread.start()
                destination.gate.release()
                arriving.regions["bias"].ready()
                for thread in threads:
                    thread.join(30)
                assert outcomes == ["not there"] * len(threads)
                with pytest.raises(ArrivalError):
                    layer(torch.ones(1, WIDTH))
            finally:
                destination.gate.release(100)
                arriving.close()


def test_hooks_that_are_there_before_an_image_wait_for_it_alone(tmp_path: Path) -> None:
    from mpsguard.images.on_demand.torch_waiting import WaitingLayers  # noqa: PLC0415 - needs PyTorch

    with ImageStore(tmp_path / "store") as store:
        commit(store, "m", {"weight": some_bytes("w", WIDTH * WIDTH * 4)})
        with store.open("m") as image, open_on_demand(image) as elsewhere:
            destination = GatedDestination(image)
            destination.gate = threading.Semaphore(0)
            arriving = ArrivingImage(image, None, destination)
            try:
                region = arriving.regions["weight"]
                weight = torch.frombuffer(region.memory, dtype=torch.float32).view(WIDTH, WIDTH)
                layer = torch.nn.Linear(WIDTH, WIDTH, bias=False)
                layer.load_state_dict({"weight": weight}, assign=True)
                layers = WaitingLayers(layer, {"weight": RegionAddresses(region.va, region.size)})
                given = torch.ones(1, WIDTH)
                assert not layer(given).any()
                with pytest.raises(ValueError, match="'weight' is to arrive at"):
                    layers.wait_for(elsewhere)
                assert not layer(given).any()
                layers.wait_for(arriving, within=0.01)
                with pytest.raises(ArrivalError, match="not there"):
                    layer(given)
                destination.gate.release()
                layers.wait_for(arriving, within=30)
                assert layer(given).any()
                layers.remove()
            finally:
                destination.gate.release(100)
                arriving.close()
