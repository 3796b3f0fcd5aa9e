"""Many tiny models in memory for some of them, over HTTP, with a real pool; host memory stands for the GPU's."""

import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from mpsguard.images.store.store import ImageStore
from tests.integration.pool.running import running
from tests.late import Late

if TYPE_CHECKING:
    from examples.llm_server.many import ManyModels

torch = Late("torch")
tensors = Late("safetensors.torch", "torch")
decode, many, memory, shapes = (
    Late(f"examples.llm_server.{name}", "torch", "transformers") for name in ("decode", "many", "memory", "shapes")
)

pytestmark = pytest.mark.slow(seconds=20, reason="loads PyTorch")

MODEL, TOKENS = "tiny-llama", 12
MEMORY = ("--host-memory", "8M", "--pinned-memory", "6M", "--gpu-memory", "4M")
"""An image takes up 2 MiB: two models are on the GPU, three in pinned memory."""


def make(seed: int, path: Path) -> list[int]:
    """Write a model's own safetensors file, and return what it answers."""
    shape, cpu = shapes.SHAPES[MODEL], torch.device("cpu")
    loaded = memory.cold(shape, 1, seed, cpu)
    tensors.save_file({name: tensor.detach().clone() for name, tensor in loaded.network.named_parameters()}, path)
    decoder = decode.Decoder(loaded.network, loaded.slots, shape, 1, cpu)
    tokens = [decoder.prefill(0, list(b"once"), 7)]
    while len(tokens) < TOKENS:
        tokens.append(decoder.step({0: decode.Next(tokens[-1], 4 + len(tokens) - 1, 7)})[0])
    return tokens


def ask(port: int, body: object) -> tuple[int, dict[str, Any]]:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@contextmanager
def serving(models: "ManyModels") -> Iterator[int]:
    with many.Server(0, models) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_each_model_answers_as_itself_and_cold_ones_are_restored(tmp_path: Path) -> None:
    files = {f"m{seed}": tmp_path / f"{seed}.safetensors" for seed in range(4)}
    expected = {name: make(seed, files[name]) for seed, name in enumerate(files)}
    assert len({tuple(tokens) for tokens in expected.values()}) == 4
    tensors.save_file({"other": torch.zeros(3)}, tmp_path / "other.safetensors")
    with running(tmp_path, *MEMORY) as pool, ImageStore(pool.store) as store, pool.connect() as mine:
        for name, path in files.items():
            many.add(store, f"{name}={path}")
        many.add(store, f"other={tmp_path / 'other.safetensors'}")
        models = many.ManyModels(shapes.SHAPES[MODEL], torch.device("cpu"), mine, store)
        with serving(models) as port:
            seen = []
            for name in ("m0", "m1", "m0", "m2", "m0", "m1", "m3", "m3"):
                asked = {"model": name, "prompt": "once", "max_tokens": TOKENS, "seed": 7}
                status, answer = ask(port, asked)
                assert (status, answer["tokens"]) == (200, expected[name])
                seen.append(answer["cold"])
            assert seen == [True, True, False, True, False, True, True, False]
            wrong = {"model": "m0", "prompt": "once", "max_tokens": 4000}
            statuses = [ask(port, {**wrong, **more})[0] for more in ({}, {"model": "none", "max_tokens": 4}, {"x": 1})]
            assert statuses == [400, 404, 400]
            status, answer = ask(port, {"model": "other", "prompt": "once"})
            assert status == 400
            assert "no tensor" in answer["error"]
        models.close()
        assert {image.uses for image in mine.listing().images} == {0}


def test_a_client_that_never_ends_its_request_holds_up_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many._Handler, "timeout", 2.0)
    over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(b"POST /generate HTTP/1.0\r\n")
            while not over.wait(0.1):
                connection.sendall(b"X: y\r\n")

    # It answers what needs no model.
    with serving(cast("ManyModels", None)) as port, socket.create_connection(("127.0.0.1", port)) as slow:
        dripping = threading.Thread(target=drip, args=(slow,))
        dripping.start()
        try:
            with pytest.raises(urllib.error.HTTPError, match="404"):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/nothing", b"{}", timeout=60)
        finally:
            over.set()
            dripping.join()
