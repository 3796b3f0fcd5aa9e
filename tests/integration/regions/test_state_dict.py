"""State dicts in regions of host memory, with a real PyTorch where one is installed."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mpsguard.vault.client.mapped import HostBackend, create
from tests.integration.vault.running import ThreadedVault
from tests.late import Late

torch = Late("torch")
torch_regions = Late("mpsguard.vault.client.torch_regions", "torch", "numpy")

ROOT = Path(__file__).resolve().parents[3]
SHAPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "weight": ("bfloat16", (3, 5)),
    "bias": ("float32", (5,)),
    "mask": ("bool", (2, 2)),
    "step": ("int64", ()),
    "empty": ("float32", (0, 4)),
}


@pytest.fixture
def vault() -> Iterator[ThreadedVault]:
    with ThreadedVault() as running:
        yield running
        running.storage.empty()


def specs() -> dict[str, Any]:
    return {name: torch_regions.Spec(*each) for name, each in SHAPES.items()}


def fill(tensors: dict[str, Any]) -> None:
    with torch.no_grad():
        for index, tensor in enumerate(tensors.values()):
            tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + index)


def test_another_process_has_the_same_tensors_on_the_same_memory(vault: ThreadedVault) -> None:
    program = (
        "import sys, torch; from mpsguard.client import LeaseRole, Session, torch_regions\n"
        "session = Session('s', socket=sys.argv[1], role=LeaseRole.READER)\n"
        "state = torch_regions.open_state_dict(session, 'w', 'cpu', private=['bias'])\n"
        "t = state.tensors; t['bias'] += 1\n"
        "print(hex(t['weight'].data_ptr()), t['weight'].dtype, t['weight'].tolist(),"
        " t['bias'].tolist(), t['mask'].tolist(),"
        " t['step'].item(), tuple(t['empty'].shape), sep='|')\n"
        "del t; state.close(); session.close()"
    )
    with vault.session() as writer, torch_regions.create_state_dict(writer, "w", specs(), "cpu") as state:
        fill(state.tensors)
        command = [sys.executable, "-c", program, vault.socket]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        mine = state.tensors
        assert said.strip().split("|") == [
            hex(mine["weight"].data_ptr()),
            "torch.bfloat16",
            str(mine["weight"].tolist()),
            str((mine["bias"] + 1).tolist()),
            str(mine["mask"].tolist()),
            "3",
            "(0, 4)",
        ]
        assert state.memory.va == mine["weight"].data_ptr()
        del mine


def test_a_tensor_keeps_the_region_mapped(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        state = torch_regions.create_state_dict(writer, "w", specs(), "cpu")
        fill(state.tensors)
        part = state.tensors["weight"][1:, 2]
        with pytest.raises(BufferError):
            state.close()
        assert part.tolist() == [7.0, 12.0]
        del part
        state.close()


def test_a_model_is_found_again_as_it_was(vault: ThreadedVault) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    wanted = {name: torch_regions.Spec(str(t.dtype)[6:], tuple(t.shape)) for name, t in model.state_dict().items()}
    with vault.session() as writer:
        with torch_regions.create_state_dict(writer, "m", wanted, "cpu") as state:
            for name, tensor in model.state_dict().items():
                state.tensors[name].copy_(tensor)
        with torch_regions.open_state_dict(writer, "m", "cpu", writable=True) as found:
            with torch.device("meta"):
                again = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
            again.load_state_dict(found.tensors, assign=True)
            data = torch.randn(16, 4)
            assert torch.equal(again(data), model(data))
            del again


def test_tensors_of_anywhere_are_written_down_as_they_lie(vault: ThreadedVault) -> None:
    with vault.session() as writer, create(writer, HostBackend(), "r", 4096) as memory:
        whole = torch_regions.tensors_at(
            memory,
            torch_regions.TensorManifest(1, 4096, {"all": torch_regions.Placed("float32", (32, 32), (32, 1), 0)}),
        )["all"]
        whole.copy_(torch.arange(1024).reshape(32, 32))
        found = torch_regions.save_state_dict(writer, memory, {"t": whole.T[3:9:2, 1:], "same": whole[0]})
        assert found.tensors["t"].strides == (2, 32)
        with pytest.raises(torch_regions.TensorManifestError, match="other"):
            torch_regions.save_state_dict(writer, memory, {"other": torch.zeros(3)})
        manifest = writer.describe("r.manifest")
        assert manifest.is_sealed
        expected = whole.T[3:9:2, 1:].clone()
        again = torch_regions.tensors_at(memory, found)["t"]
        assert torch.equal(again, expected)
        del whole, again


def test_what_is_not_there_is_said(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        torch_regions.create_state_dict(writer, "w", specs(), "cpu").close()
        with pytest.raises(torch_regions.TensorManifestError, match="'wieght'"):
            torch_regions.open_state_dict(writer, "w", "cpu", private=["wieght"])
        with pytest.raises(ValueError, match="meta"):
            torch_regions.open_state_dict(writer, "w", "meta")


def test_a_region_without_room_for_its_manifest_is_taken_back(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        create(writer, HostBackend(), "w.manifest", 1).close()
        with pytest.raises(Exception, match=r"w\.manifest"):
            torch_regions.create_state_dict(writer, "w", specs(), "cpu")
        assert list(writer.names()) == ["w.manifest"]


def test_only_memory_of_a_gpu_becomes_a_pool(vault: ThreadedVault) -> None:
    with (
        vault.session() as writer,
        create(writer, HostBackend(), "r", 4 << 20) as memory,
        pytest.raises(ValueError, match="only a GPU's"),
    ):
        torch_regions.RegionPool(memory)
