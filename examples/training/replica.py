"""Everything that a training step changes, in given memory: the parameters and the optimiser's state."""

from collections.abc import Mapping
from typing import Any

import torch

from mpsguard.vault.client.torch_regions import Spec

INPUTS, OUTPUTS, WIDTH, BATCH = 32, 8, 128, 64


def network() -> Any:
    """Return the model: small, with typical layers."""
    return torch.nn.Sequential(
        torch.nn.Linear(INPUTS, WIDTH),
        torch.nn.GELU(),
        torch.nn.LayerNorm(WIDTH),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.GELU(),
        torch.nn.Linear(WIDTH, OUTPUTS),
    )


def batch(step: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and targets of a step, which depend on its number only."""
    generator = torch.Generator().manual_seed(step)
    inputs = torch.randn(BATCH, INPUTS, generator=generator)
    targets = torch.sin(3 * inputs[:, :OUTPUTS]) + inputs[:, OUTPUTS : 2 * OUTPUTS]
    return inputs.to(device), targets.to(device)


def specs() -> dict[str, Spec]:
    """Return the tensors of one replica."""
    with torch.device("meta"):
        parameters = dict(network().named_parameters())
    wanted: dict[str, Spec] = {}
    for name, tensor in parameters.items():
        like = Spec("float32", tuple(tensor.shape))
        wanted |= {f"{name}/value": like, f"{name}/exp_avg": like, f"{name}/exp_avg_sq": like}
        wanted[f"{name}/step"] = Spec("float32", ())
    return wanted


class Replica:
    """A model and its optimiser. Does not own the tensors."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = dict(tensors)
        with torch.device("meta"):
            self._network = network()
        names = [name for name, _ in self._network.named_parameters()]
        values = {name: torch.nn.Parameter(self._tensors[f"{name}/value"]) for name in names}
        self._network.load_state_dict(values, assign=True)
        parameters = dict(self._network.named_parameters())
        on_gpu = next(iter(parameters.values())).is_cuda
        self._optimizer = torch.optim.AdamW(parameters.values(), lr=1e-3, capturable=on_gpu, foreach=False)
        for name, parameter in parameters.items():
            parts = ("step", "exp_avg", "exp_avg_sq")
            self._optimizer.state[parameter] = {part: self._tensors[f"{name}/{part}"] for part in parts}

    def fill(self, seed: int) -> None:
        """Initialise: random parameters, and an empty optimiser state."""
        torch.manual_seed(seed)
        first = dict(network().named_parameters())
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                parameter, _, part = name.rpartition("/")
                tensor.copy_(first[parameter]) if part == "value" else tensor.zero_()

    def step(self, before: "Replica", number: int, device: torch.device) -> float:
        """Compute the step that follows ``before`` and return its loss; finished on return."""
        with torch.no_grad():
            for name, tensor in self._tensors.items():
                tensor.copy_(before._tensors[name])
        inputs, targets = batch(number, device)
        self._optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.mse_loss(self._network(inputs), targets)
        loss.backward()
        self._optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return float(loss.item())
