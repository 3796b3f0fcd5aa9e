"""PyTorch tensors in regions: needs PyTorch, and for a GPU the extra ``cuda``.

with cuda.create(session, "weights", size) as memory, RegionPool(memory) as pool:
    with pool.use():
        model = build()                                       # every CUDA tensor created here lies in the region
    save_state_dict(session, memory, model.state_dict())

state = open_state_dict(session, "weights", "cuda:0")                # in the standby: the same memory, read-only
model.load_state_dict(state.tensors, assign=True)
"""

from mpsguard.vault.client.tensor_manifest import Placed, Spec, TensorManifest, TensorManifestError
from mpsguard.vault.client.torch_regions.announcing import AnnouncedWrites, announce_writes
from mpsguard.vault.client.torch_regions.pool import RegionPool
from mpsguard.vault.client.torch_regions.state_dict import (
    StateDict,
    backend_of,
    create_state_dict,
    open_state_dict,
    save_state_dict,
    tensors_at,
)

__all__ = [
    "AnnouncedWrites",
    "Placed",
    "RegionPool",
    "Spec",
    "StateDict",
    "TensorManifest",
    "TensorManifestError",
    "announce_writes",
    "backend_of",
    "create_state_dict",
    "open_state_dict",
    "save_state_dict",
    "tensors_at",
]
