"""The models of the suite: shapes of well-known ones with random weights, and structures without memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn


class Kind(NamedTuple):
    """One model."""

    build: Callable[[], nn.Module]
    dtype: torch.dtype
    question: Callable[[], torch.Tensor]
    library: str = "torch"
    """The module with the model's layers, which takes seconds to import."""
    graph: bool = True
    """Whether its answer can be recorded as a CUDA graph: nothing in it depends on what the GPU has computed."""


class _Inverted(nn.Module):  # type: ignore[misc]  # PyTorch is not there for mypy
    """MobileNetV2's block: expand, filter each channel by itself, project."""

    def __init__(self, inside: int, outside: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inside * expansion
        self.adds = stride == 1 and inside == outside
        layers = [_filtered(inside, hidden, 1)] if expansion != 1 else []
        layers += [_filtered(hidden, hidden, 3, stride, hidden), nn.Conv2d(hidden, outside, 1, bias=False)]
        self.layers = nn.Sequential(*layers, nn.BatchNorm2d(outside))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        return x + y if self.adds else y


def _filtered(inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outside), nn.ReLU6())


def _mobilenet() -> nn.Module:
    """MobileNetV2 (Sandler et al. 2018), 3.5 million parameters."""
    layers, inside = [_filtered(3, 32, 3, 2)], 32
    for expansion, outside, count, stride in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for index in range(count):
            layers.append(_Inverted(inside, outside, stride if index == 0 else 1, expansion))
            inside = outside
    return nn.Sequential(*layers, _filtered(320, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


class _Attention(nn.Module):  # type: ignore[misc]  # PyTorch is not there for mypy
    """Each word looks at those before it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.inside = nn.Linear(width, 3 * width, bias=False)
        self.outside = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words, width = x.shape
        query, key, value = self.inside(self.norm(x)).view(words, 3, self.heads, -1).permute(1, 2, 0, 3)
        found = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.outside(found.transpose(0, 1).reshape(words, width))


class _Experts(nn.Module):  # type: ignore[misc]  # PyTorch is not there for mypy
    """Feed-forward layers, of which each word goes through two."""

    def __init__(self, width: int, inner: int, count: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.router = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, inner, bias=False), nn.GELU(), nn.Linear(inner, width, bias=False))
            for _ in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        weights, chosen = self.router(y).float().softmax(-1).topk(2)
        added = torch.zeros_like(x)
        for number in chosen.unique().tolist():
            words, places = (chosen == number).nonzero(as_tuple=True)
            added.index_add_(0, words, self.experts[number](y[words]) * weights[words, places, None].to(x.dtype))
        return x + added


def _mixture(width: int, inner: int, experts: int, layers: int, vocabulary: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        blocks = [(_Attention(width, 8), _Experts(width, inner, experts)) for _ in range(layers)]
        last = (nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
        return nn.Sequential(nn.Embedding(vocabulary, width), *(each for block in blocks for each in block), *last)

    return build


def _language(config: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - seconds, and one model here does without it

    model: nn.Module = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    return model


def _gpt2(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from transformers import GPT2Config  # noqa: PLC0415 - as above

        return _language(GPT2Config(**options))

    return build


def _llama(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from transformers import LlamaConfig  # noqa: PLC0415 - as above

        return _language(LlamaConfig(**options))

    return build


def _image() -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * 224 * 224).view(1, 3, 224, 224)


def _small_image() -> torch.Tensor:
    return torch.linspace(-1, 1, 3 * 32 * 32).view(1, 3, 32, 32)


def _words() -> torch.Tensor:
    return torch.arange(1, 33).view(1, 32)


def _few_words() -> torch.Tensor:
    return torch.arange(1, 5)


_GPT2, _LLAMA = "transformers.models.gpt2.modeling_gpt2", "transformers.models.llama.modeling_llama"
_SMALL = {"bos_token_id": 0, "eos_token_id": 0, "vocab_size": 512}
KINDS: Mapping[str, Kind] = {
    "mobilenet": Kind(_mobilenet, torch.float32, _image),
    "gpt2-large": Kind(_gpt2(n_embd=1280, n_layer=36, n_head=20), torch.float32, _words, _GPT2),
    "7b": Kind(_llama(), torch.float16, _words, _LLAMA),
    "mixture": Kind(_mixture(1024, 2816, 32, 12, 32000), torch.float16, _few_words, graph=False),
    "gpt2": Kind(_gpt2(), torch.float16, _words, _GPT2),
    "small-mobilenet": Kind(_mobilenet, torch.float32, _small_image),
    "small-gpt2": Kind(_gpt2(n_embd=128, n_layer=4, n_head=4, **_SMALL), torch.float32, _words, _GPT2),
    "small-mixture": Kind(_mixture(64, 256, 8, 3, 512), torch.float32, _few_words, graph=False),
    "small-llama": Kind(
        _llama(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4, vocab_size=512),
        torch.float32,
        _words,
        _LLAMA,
    ),
}
"""By name; the small ones are for machines without a GPU."""


class Skeleton:
    """A model's Python objects and buffers, with parameters that have no memory until they are bound."""

    def __init__(self, kind: str, device: str) -> None:
        self.kind = KINDS[kind]
        self.device = device
        with _without_memory(), torch.device(device), _type(self.kind.dtype):
            self.model = self.kind.build().eval().requires_grad_(False)
        self.question = self.kind.question().to(device)
        if self.question.is_floating_point():
            self.question = self.question.to(self.kind.dtype)
        names = self.model.state_dict(keep_vars=True)
        owners: dict[int, list[tuple[dict[str, Any], str]]] = {}
        for module in self.model.modules():
            for members in (module._parameters, module._buffers):
                for leaf, tensor in members.items():
                    owners.setdefault(id(tensor), []).append((members, leaf))
        self._slots: dict[str, list[tuple[dict[str, Any], str]]] = {}
        seen = set()
        for name, tensor in names.items():
            # A tied parameter has several names, and is stored under the first one.
            if id(tensor) not in seen:
                seen.add(id(tensor))
                self._slots[name] = owners[id(tensor)]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._output = self.question
        self.shapes = {name: (tuple(names[name].shape), names[name].dtype) for name in self._slots}

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Make the model use these tensors, without a copy."""
        for name, slots in self._slots.items():
            tensor = tensors[name]
            for members, leaf in slots:
                parameter = isinstance(members[leaf], nn.Parameter)
                members[leaf] = nn.Parameter(tensor, requires_grad=False) if parameter else tensor

    def drop(self) -> None:
        """Let go of all tensors that were bound."""
        self.bind(
            {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in self.shapes.items()}
        )

    def warm(self) -> None:
        """Load all kernels: run once with one tensor for all parameters of a shape, which takes little memory."""
        made: dict[Any, torch.Tensor] = {}
        for shape in self.shapes.values():
            if shape not in made:
                made[shape] = torch.zeros(shape[0], dtype=shape[1], device=self.device)
        self.bind({name: made[shape] for name, shape in self.shapes.items()})
        self.answer()
        self.drop()

    def record(self) -> None:
        """Load all kernels, and record the answer as a CUDA graph of the bound tensors, independent of their content.

        Without a GPU there is no graph, nor if the model waits for the GPU halfway (RuntimeError).
        """
        self.answer()
        if self.device == "cpu" or not self.kind.graph:
            return
        try:
            self._graph = self._recorded()
        except RuntimeError as error:
            sys.stderr.write(f"no CUDA graph: {error}\n")

    def _recorded(self) -> torch.cuda.CUDAGraph:
        # As torch.cuda.graph wants it: first on another stream, so that what is made once is not recorded.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.inference_mode():
            with torch.cuda.stream(side):
                self._said()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._output = self._said()
        # The first launch brings it to the GPU.
        graph.replay()
        torch.cuda.synchronize()
        return graph

    @property
    def recorded(self) -> bool:
        """Whether there is a graph for `quick_answer`."""
        return self._graph is not None

    def answer(self) -> list[float]:
        """Return some numbers of the answer to the model's question."""
        with torch.inference_mode():
            found: list[float] = self._said().tolist()
        return found

    def quick_answer(self) -> list[float]:
        """Return the same by the graph, if there is one: the tensors are where they were when it was recorded."""
        if self._graph is None:
            return self.answer()
        self._graph.replay()
        found: list[float] = self._output.tolist()
        return found

    def _said(self) -> torch.Tensor:
        said = self.model(self.question)
        logits = said if isinstance(said, torch.Tensor) else said.logits
        return logits.reshape(-1)[-8:].float()

    def random(self, seed: int) -> dict[str, torch.Tensor]:
        """Return weights, the same for a seed on one kind of device."""
        generator = torch.Generator(self.device).manual_seed(seed)
        tensors = {}
        for name, (shape, dtype) in self.shapes.items():
            if not dtype.is_floating_point:
                tensors[name] = torch.zeros(shape, dtype=dtype, device=self.device)
                continue
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
            if len(shape) < 2:  # norms and biases: near to one, as variances must be
                tensor.uniform_(0.9, 1.1, generator=generator)
            else:
                tensor.normal_(0.0, 0.05, generator=generator)
            tensors[name] = tensor
        return tensors


@contextmanager
def _without_memory() -> Iterator[None]:
    """Have the parameters of modules that are built in the block moved to PyTorch's meta device; buffers stay."""
    register = nn.Module.register_parameter

    def without(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and parameter.device.type != "meta":
            parameter = nn.Parameter(parameter.to("meta"), requires_grad=False)
        register(module, name, parameter)

    nn.Module.register_parameter = without
    try:
        yield
    finally:
        nn.Module.register_parameter = register


@contextmanager
def _type(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
