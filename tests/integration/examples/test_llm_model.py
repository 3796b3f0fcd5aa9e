"""The token server with a real, tiny model on the CPU and a real vault, where PyTorch and transformers are there."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.harness.whole_lines import whole_lines
from tests.integration.examples.waiting import until
from tests.integration.vault.running import REPOSITORY, VaultProcess

pytestmark = pytest.mark.slow(seconds=120, reason="loads PyTorch for each process of a takeover")

SLOTS, PROMPT, TOKENS = 3, 20, 25
REQUESTS, LONG = 5, 60
"""Of the processes, and the tokens of each."""
MODELS = ("tiny-gpt2", "tiny-llama")


@pytest.fixture
def tiny() -> Iterator[ModuleType]:
    """The models in this process; imported late, for each worker of a parallel run imports all test files."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    from tests.integration.examples import tiny_model  # noqa: PLC0415 - see above

    # Threads that spin at such small models cost other tests their time.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield tiny_model
    torch.set_num_threads(before)


@pytest.fixture(params=MODELS)
def shape(request: pytest.FixtureRequest, tiny: ModuleType) -> Any:
    return tiny.SHAPES[request.param]


def sequence(
    tiny: ModuleType,
    at_work: Any,
    number: int,
    slot: int,
    others: dict[int, Any] | None = None,
    *,
    length: int = TOKENS,
) -> list[int]:
    asked = tiny.request(number, slot, prompt=PROMPT, tokens=length, vocabulary=512)
    tokens = [at_work.prefill(slot, asked.prompt, asked.seed)]
    while len(tokens) < length:
        given = {slot: tiny.Next(tokens[-1], PROMPT + len(tokens) - 1, asked.seed), **(others or {})}
        tokens.append(at_work.step(given)[slot])
    return tokens


def test_a_sequence_depends_on_nothing_beside_it(tiny: ModuleType, shape: Any) -> None:
    loaded = tiny.cold(shape, SLOTS, 1)
    at_work = tiny.decoder(loaded, shape, SLOTS)
    alone = sequence(tiny, at_work, 5, 0)
    assert len(set(alone)) > TOKENS // 2
    assert sequence(tiny, at_work, 6, 0) != alone
    assert sequence(tiny, at_work, 5, 2, {0: tiny.Next(7, 3, 9), 1: tiny.Next(3, 60, 1)}) == alone
    assert sequence(tiny, tiny.decoder(tiny.cold(shape, SLOTS, 1), shape, SLOTS), 5, 1) == alone
    assert sequence(tiny, tiny.decoder(tiny.cold(shape, SLOTS, 2), shape, SLOTS), 5, 0) != alone


def test_what_is_cached_decides(tiny: ModuleType, shape: Any) -> None:
    """A stream of tokens would tell if cached keys and values got lost."""
    loaded = tiny.cold(shape, SLOTS, 1)
    at_work = tiny.decoder(loaded, shape, SLOTS)
    expected = sequence(tiny, at_work, 5, 0)
    asked = tiny.request(5, 0, prompt=PROMPT, tokens=TOKENS, vocabulary=512)
    at_work.prefill(0, asked.prompt, asked.seed)
    for tensor in (*loaded.slots.keys, *loaded.slots.values):
        tensor[0, :, : PROMPT // 2] = 0.0
    tokens = expected[:1]
    while len(tokens) < TOKENS:
        tokens.append(at_work.step({0: tiny.Next(tokens[-1], PROMPT + len(tokens) - 1, 5)})[0])
    assert tokens != expected


def test_warming_writes_nothing_that_is_read(tiny: ModuleType, shape: Any) -> None:
    loaded = tiny.cold(shape, SLOTS, 1)
    tensors = (*loaded.slots.keys, *loaded.slots.values)
    for tensor in tensors:
        tensor.fill_(3.0)
    tiny.decoder(loaded, shape, SLOTS).warm(record=True)
    for tensor in tensors:
        assert bool((tensor[:, :, : shape.length] == 3.0).all())


class Processes:
    """The server's processes of one session, without a network."""

    def __init__(self, vault: VaultProcess, directory: Path, model: str) -> None:
        self._vault, self._directory, self._model = vault, directory, model
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, session: str, role: str, mode: str) -> tuple[subprocess.Popen[bytes], Path]:
        events = self._directory / f"{session}.{len(self._running)}"
        words = ["--device", "cpu", "--model", self._model, "--session", session, "--events", str(events)]
        words += ["--requests", str(REQUESTS), "--prompt", str(PROMPT), "--tokens", str(LONG), "--slots", str(SLOTS)]
        words += ["--mode", mode]
        environment = {
            **os.environ,
            "MPSGUARD_VAULT": self._vault.socket,
            "MPSGUARD_ROLE": role,
            "OMP_NUM_THREADS": "1",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "examples.llm_server", *words], cwd=REPOSITORY, env=environment
        )
        self._running.append(process)
        return process, events

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def read(events: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(events)]


def count(events: Path, name: str) -> int:
    return sum(event["event"] == name for event in read(events))


def answers(*files: Path) -> dict[int, list[int]]:
    return {event["id"]: event["tokens"] for file in files for event in read(file) if event["event"] == "answer"}


@pytest.fixture
def processes(tmp_path: Path, shape: Any) -> Iterator[Processes]:
    with VaultProcess() as vault:
        running = Processes(vault, tmp_path, shape.name)
        yield running
        running.close()


@pytest.mark.parametrize(
    ("shape", "mode"),
    [
        ("tiny-gpt2", "reload"),
        ("tiny-llama", "vault"),
        pytest.param("tiny-gpt2", "vault", marks=pytest.mark.soak),
        pytest.param("tiny-llama", "reload", marks=pytest.mark.soak),
    ],
    indirect=["shape"],
)
def test_the_standby_goes_on_with_the_next_token(tiny: ModuleType, shape: Any, processes: Processes, mode: str) -> None:
    at_work = tiny.decoder(tiny.cold(shape, SLOTS, 0), shape, SLOTS)
    expected = {number: sequence(tiny, at_work, number, 0, length=LONG) for number in range(REQUESTS)}
    active, before = processes.start("s", "active", mode)
    until("a few tokens", lambda: count(before, "token") >= 5)
    # It must not be through before the standby is ready.
    active.send_signal(signal.SIGSTOP)
    standby, after = processes.start("s", "standby", mode)
    until("a standby", lambda: count(after, "prepared"))
    seen = count(before, "token")
    active.send_signal(signal.SIGCONT)
    until("a few more", lambda: count(before, "token") >= seen + 10)
    active.kill()
    active.wait()
    assert standby.wait(240) == 0
    assert answers(before, after) == expected
    names = [event["event"] for event in read(after)]
    assert names[:3] == ["prepared", "promoted", "first_operation"]
    assert (
        sum(len(e["tokens"]) for f in (before, after) for e in read(f) if e["event"] == "token") >= REQUESTS * LONG - 3
    )


@pytest.mark.parametrize("shape", ["tiny-gpt2", pytest.param("tiny-llama", marks=pytest.mark.soak)], indirect=True)
def test_a_cold_start_goes_on_where_the_state_says(processes: Processes) -> None:
    active, before = processes.start("s", "active", "vault")
    until("a few tokens", lambda: count(before, "token") >= 20)
    active.kill()
    active.wait()
    again, after = processes.start("s", "active", "vault")
    assert again.wait(240) == 0
    assert sorted(answers(before, after)) == list(range(REQUESTS))
    assert count(after, "token") < REQUESTS * LONG / SLOTS + 10
