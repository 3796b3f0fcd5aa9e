"""A network of equal layers with AdamW, all of which lies in one region: as large as is asked for."""

import os
import time
from typing import Any, Final

# Before PyTorch is loaded: sums must be the same in every process.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from mpsguard.client import Session
from mpsguard.vault.client.torch_regions import Spec, StateDict, announce_writes, create_state_dict, open_state_dict

REGION: Final = "training"
PARTS: Final = ("value", "exp_avg", "exp_avg_sq", "step")
_BYTES: Final = 12
"""Of state for each parameter: itself and two moments, float32."""


def shape(size: int) -> tuple[int, int]:
    """Number of layers and their width, for about that many bytes of state and at least six layers."""
    width = 8192
    while width > 128 and size < 6 * width * width * _BYTES:
        width //= 2
    return max(2, size // (width * width * _BYTES)), width


def specs(layers: int, width: int) -> dict[str, Spec]:
    """The tensors of the state."""
    wide, single = Spec("float32", (width, width)), Spec("float32", ())
    return {f"{layer}/{part}": single if part == "step" else wide for layer in range(layers) for part in PARTS}


class Training:
    """The network in a region of a session. With ``first`` its content is made, otherwise it is found."""

    def __init__(
        self, session: Session, size: int, device: str, rows: int, *, first: bool, accumulate: int = 1
    ) -> None:
        torch.use_deterministic_algorithms(True)
        torch.backends.cuda.matmul.allow_tf32 = True
        self.session = session
        self.device = torch.device(device)
        self.rows = rows
        self.accumulate = accumulate
        self.layers, self.width = shape(size)
        if first:
            self.state: StateDict = create_state_dict(session, REGION, specs(self.layers, self.width), device)
        else:
            self.state = open_state_dict(session, REGION, device, writable=True)
            self.layers = sum(name.endswith("/value") for name in self.state.tensors)
            self.width = self.state.tensors["0/value"].shape[0]
        if first:
            self._fill()
        self.parameters = [torch.nn.Parameter(self.state.tensors[f"{n}/value"]) for n in range(self.layers)]
        cuda = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, fused=cuda, foreach=None if cuda else False)
        for number, parameter in enumerate(self.parameters):
            self.optimizer.state[parameter] = {part: self.state.tensors[f"{number}/{part}"] for part in PARTS[1:]}
        self.writes = announce_writes([self.state.memory], optimizer=self.optimizer)
        self.made = int(self.state.tensors["0/step"].item())

    @property
    def memory(self) -> Any:
        return self.state.memory

    def _fill(self) -> None:
        generator = torch.Generator(self.device).manual_seed(1)
        for name, tensor in self.state.tensors.items():
            if name.endswith("value"):
                tensor.normal_(0.0, self.width**-0.5, generator=generator)
            else:
                tensor.zero_()
        self.synchronize()

    def synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def step(self) -> tuple[str, float]:
        """One step, published: its loss, bit for bit as text, and its seconds."""
        began = time.perf_counter()
        self.made += 1
        generator = torch.Generator(self.device).manual_seed(self.made)
        for _ in range(self.accumulate):
            now = inputs = torch.randn(self.rows, self.width, device=self.device, generator=generator)
            for parameter in self.parameters:
                now = now + 0.1 * torch.nn.functional.linear(now, parameter)
            loss = torch.nn.functional.mse_loss(now, torch.roll(inputs, 1, 1))
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        text = float(loss.detach().item()).hex()
        self.synchronize()
        self.session.publish(b"%d" % self.made)
        return text, time.perf_counter() - began

    def tensors(self) -> dict[str, torch.Tensor]:
        """What a peer would save."""
        return dict(self.state.tensors)
