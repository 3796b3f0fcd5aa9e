"""A server of many models of one shape on one GPU; a model that nothing asks for takes up nothing there in the end.

    mpsguard pool --host-memory 1G --pinned-memory 32G --gpu-memory 8G
    python -m examples.llm_server.many --shape gpt2 --image mine=model.safetensors --image in-the-store --port 8000
    curl localhost:8000/generate -d '{"model": "mine", "prompt": "once", "max_tokens": 8}'

A request holds its model in the pool's GPU tier and lets go of it with the answer. One that is not there comes from
pinned memory, or from the store, and the least recently used ones make room for it.
"""

import argparse
import os
import socket
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import msgspec
import torch
from msgspec import Meta

from examples.llm_server import memory, model
from examples.llm_server.decode import Decoder, Next
from examples.llm_server.shapes import SHAPES, Shape
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.device_image import GpuTiers, hold_on_gpu
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_tensors import tensors_of
from mpsguard.images.pool.pinned_arena import PinnedArena
from mpsguard.images.store import safetensors_file
from mpsguard.images.store.errors import ImageError
from mpsguard.images.store.location import default_directory
from mpsguard.images.store.manifest import Manifest
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.cuda.driver import CudaBackend
from mpsguard.vault.client.mapped.host import HostBackend

_MOST_BYTES: Final = 65536
_PATIENCE: Final = 10.0
"""Seconds that a client may take to send its request, or to receive the answer."""


class ModelRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON body of POST /generate."""

    model: Annotated[str, Meta(max_length=128)]
    prompt: Annotated[str, Meta(min_length=1, max_length=4096)]
    """Its UTF-8 bytes are the tokens."""
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 16
    seed: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0


class ModelAnswer(NamedTuple):
    """The tokens, and whether the model had to be brought to the GPU first."""

    tokens: list[int]
    cold: bool


class UnfitRequestError(Exception):
    """The request, or the image that it names, does not fit the server's shape."""


class ManyModels:
    """One structure with loaded kernels, which the weights of any model are put into."""

    def __init__(self, shape: Shape, device: torch.device, pool: PoolConnection, store: ImageStore) -> None:
        """Prepare all that does not depend on a model; ``pool`` and ``store`` stay owned by the caller."""
        self._shape, self._device, self._store = shape, device, store
        backend = HostBackend() if device.type == "cpu" else CudaBackend()
        self._loaded = memory.cold(shape, 1, 0, device)
        self._decoder = Decoder(self._loaded.network, self._loaded.slots, shape, 1, device)
        self._decoder.warm(record=False)
        self._specs = {name: tuple(tensor.shape) for name, tensor in self._loaded.network.named_parameters()}
        self._let_go()
        self._tiers = GpuTiers(pool, store, PinnedArena(pool, backend), backend)

    def answer(self, asked: ModelRequest) -> ModelAnswer:
        """Answer a request.

        Raises:
            UnfitRequestError: it is too long, or the image is no model of this shape.
            ImageError: there is no such image.
            PoolError: there is no room for it.
        """
        prompt = list(asked.prompt.encode())
        if len(prompt) + asked.max_tokens > self._shape.length:
            raise UnfitRequestError(f"prompt and max_tokens: {self._shape.length} tokens together at most")
        with (
            self._store.open(asked.model) as image,
            hold_on_gpu(self._tiers, image) as held,
        ):
            tensors = tensors_of(held)
            for name, shape in self._specs.items():
                if name not in tensors or tuple(tensors[name].shape) != shape:
                    raise UnfitRequestError(f"image {asked.model}: no tensor {name} of shape {list(shape)}")
            try:
                model.put(self._loaded.network, {name: tensors[name] for name in self._specs})
                tokens = [self._decoder.prefill(0, prompt, asked.seed)]
                while len(tokens) < asked.max_tokens:
                    place = len(prompt) + len(tokens) - 1
                    tokens.append(self._decoder.step({0: Next(tokens[-1], place, asked.seed)})[0])
            finally:
                del tensors
                self._let_go()
            return ModelAnswer(tokens, cold=held.made)

    def close(self) -> None:
        """Give the arena's mapping back."""
        self._tiers.arena.close()

    def _let_go(self) -> None:
        dtype = getattr(torch, self._shape.dtype)
        empty = {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in self._specs.items()}
        model.put(self._loaded.network, empty)


def add(store: ImageStore, word: str) -> None:
    """Put NAME=FILE into the store, or see that NAME is there; raise ImageError."""
    name, given, file = word.partition("=")
    if not given:
        store.open(name).close()
        return
    path = Path(file)
    with safetensors_file.opened(path, "model") as tensors, store.begin(name) as draft:
        region = safetensors_file.read_into(draft, tensors, path, "model")
        draft.commit(Manifest.made_now("many", (region,), tensors=tensors.tensors))


class _Handler(BaseHTTPRequestHandler):
    timeout = _PATIENCE
    server: "Server"

    def handle(self) -> None:
        """See `BaseHTTPRequestHandler`."""
        # `timeout` is that of each byte: a client that sends one now and then would hold up all others.
        self._late = threading.Timer(self.timeout, self._give_up)
        self._late.start()
        try:
            super().handle()
        finally:
            self._late.cancel()

    def _give_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    def do_POST(self) -> None:
        """Answer a request."""
        try:
            length = int(self.headers.get("Content-Length", "-1"))
            if self.path != "/generate" or not 0 <= length <= _MOST_BYTES:
                self._say(404, {"error": f"there is POST /generate, with {_MOST_BYTES} bytes at most"})
                return
            body = self.rfile.read(length)
            self._late.cancel()
            asked = msgspec.json.decode(body, type=ModelRequest)
            self._say(200, self.server.models.answer(asked)._asdict())
        except (ValueError, UnfitRequestError) as error:  # msgspec's errors are ValueErrors
            self._say(400, {"error": str(error)})
        except ImageError as error:
            self._say(404, {"error": str(error)})
        except PoolError as error:
            self._say(503, {"error": str(error)})

    def _say(self, status: int, value: dict[str, Any]) -> None:
        body = msgspec.json.encode(value) + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the name is the base class's
        """Do not log requests."""


class Server(HTTPServer):
    """Answers one request after the other, as the GPU would anyway."""

    def __init__(self, port: int, models: ManyModels) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.models = models


def main(words: Sequence[str] | None = None) -> int:
    """Run the server and return the exit code: 1 if it cannot start; wrong arguments exit with 2."""
    parser = argparse.ArgumentParser(prog="python -m examples.llm_server.many", description="Many models on one GPU")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="gpt2", help="of all models (default %(default)s)")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: host memory stands for the GPU's"
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="NAME[=FILE.safetensors]",
        help="require this image, or make it of FILE; may be given several times",
    )
    parser.add_argument(
        "--store", type=Path, default=None, help="directory of images; default as of mpsguard-ctl image"
    )
    parser.add_argument("--port", type=int, required=True, help="on 127.0.0.1")
    options = parser.parse_args(words)
    with ExitStack() as owned:
        try:
            store = owned.enter_context(ImageStore(options.store or default_directory()))
            for word in options.image:
                add(store, word)
            pool = owned.enter_context(PoolConnection())
            models = ManyModels(SHAPES[options.shape], torch.device(options.device), pool, store)
            owned.callback(models.close)
            server = owned.enter_context(Server(options.port, models))
        except (ImageError, PoolError, OSError) as error:
            print(f"llm_server.many: {error}", file=sys.stderr, flush=True)
            return 1
        server.serve_forever()
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    # As in __main__.py: after a fault of the GPU the interpreter's own end may hang.
    os._exit(status)
