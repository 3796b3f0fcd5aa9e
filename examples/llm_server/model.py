"""The model: its structure from a configuration, its weights in given memory."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from examples.llm_server.shapes import Shape
from mpsguard.vault.client.torch_regions import Spec


def skeleton(shape: Shape) -> Any:
    """Return the model without memory (PyTorch's meta device)."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            shape.config(), dtype=getattr(torch, shape.dtype), attn_implementation="sdpa"
        )
    return model.eval().requires_grad_(False)


def specs(model: Any) -> dict[str, Spec]:
    """Return the tensors that a model needs: parameters (tied ones once) and buffers, saved or not."""
    named = [*model.named_parameters(), *model.named_buffers()]
    return {name: Spec(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in named}


def private(wanted: Mapping[str, Spec], device: torch.device, *, pinned: bool = False) -> dict[str, torch.Tensor]:
    """Allocate such tensors in private memory."""
    return {
        name: torch.empty(spec.shape, dtype=getattr(torch, spec.dtype), device=device, pin_memory=pinned)
        for name, spec in wanted.items()
    }


def put(model: Any, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make the model use these tensors without copying them."""
    parameters = {name for name, _ in model.named_parameters()}
    for name, tensor in tensors.items():
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        if name in parameters:
            setattr(module, leaf, torch.nn.Parameter(tensor, requires_grad=False))
        else:
            module.register_buffer(leaf, tensor, persistent=leaf not in module._non_persistent_buffers_set)
    model.tie_weights()


def fill(model: Any, seed: int) -> None:
    """Set random weights by the model's own rules, equal for the same seed on the same kind of device."""
    torch.manual_seed(seed)
    model.init_weights()
