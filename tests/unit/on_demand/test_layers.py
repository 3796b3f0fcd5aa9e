"""Modules of PyTorch that wait for their parameters; on the processor."""

import threading
from pathlib import Path
from typing import Any

from mpsguard.client.on_demand import Profile, load_profile, open_on_demand, save_profile
from mpsguard.images.pieces import PIECE_SIZE
from mpsguard.images.store import ImageStore
from tests.late import Late
from tests.unit.images.samples import commit

torch = Late("torch")

LAYERS, WIDTH = 4, 724
"""Each layer takes 2 MiB, or nearly so."""


def model() -> Any:
    with torch.device("meta"):
        return torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))


def test_layers_wait_for_their_own_pieces_and_a_run_records_the_order(tmp_path: Path) -> None:
    from mpsguard.client.torch_regions.waiting import wait_for_layers  # noqa: PLC0415 - needs PyTorch

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
