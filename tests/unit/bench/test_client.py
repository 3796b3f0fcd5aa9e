"""Client programs as children: events are waited for, and nothing stays behind."""

import os
import time
from pathlib import Path

import pytest

from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.unit.bench.telling import program


def test_a_controlled_client_is_released_and_stopped(tmp_path: Path) -> None:
    with Clients() as clients:
        text = "emit('first_kernel'); sys.stdin.readline(); emit('begin'); "
        text += "sys.stdin.read(); emit('finished', iterations=3)"
        client = clients.start(program(text), tmp_path, "one")
        client.wait_for("first_kernel", 20)
        assert client.seen("begin") is None
        client.go()
        client.wait_for("begin", 20)
        client.stop()
        outcome = client.finish(20)
    assert outcome.ok
    assert outcome.iterations == 3


def test_an_event_can_be_waited_for_after_a_moment(tmp_path: Path) -> None:
    with Clients() as clients:
        client = clients.start(program("emit('second'); sys.stdin.readline(); emit('second')"), tmp_path, "one")
        client.wait_for("second", 20)
        now = time.monotonic()
        client.go()
        assert client.wait_for("second", 20, after=now).monotonic > now


def test_a_client_that_ends_without_the_event_says_how(tmp_path: Path) -> None:
    with Clients() as clients:
        client = clients.start(program("emit('failed', code=807); print('chatter'); sys.exit(4)"), tmp_path, "one")
        with pytest.raises(SuiteError, match=r"no 'first_kernel': one .* status 4; failed .*807.* chatter"):
            client.wait_for("first_kernel", 20)


def test_a_wait_has_an_end(tmp_path: Path) -> None:
    with Clients() as clients:
        client = clients.start(program("sys.stdin.read()"), tmp_path, "slow")
        with pytest.raises(TimeoutError, match=r"slow: no 'x' within 0\.05 s"):
            client.wait_for("x", 0.05)


def test_a_client_that_does_not_end_is_killed(tmp_path: Path) -> None:
    with Clients() as clients:
        client = clients.start(program("emit('start'); time.sleep(600)"), tmp_path, "stuck")
        client.wait_for("start", 20)
        with pytest.raises(SuiteError, match="stuck did not end"):
            client.finish(0.05)


def test_a_client_that_is_ended_gets_sigterm_first(tmp_path: Path) -> None:
    text = "import signal; signal.signal(signal.SIGTERM, lambda *_: sys.exit(9)); emit('start'); time.sleep(600)"
    with Clients() as clients:
        client = clients.start(program(text), tmp_path, "wrapper")
        client.wait_for("start", 20)
        client.end(grace=1.0)
        assert client.ended_with() == 9


def test_leaving_the_block_ends_every_client(tmp_path: Path) -> None:
    started: list[Client] = []

    def fails() -> None:
        with Clients() as clients:
            started.extend(
                clients.start(program("emit('start'); sys.stdin.read()"), tmp_path, str(index)) for index in range(3)
            )
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fails()
    for client in started:
        with pytest.raises(ProcessLookupError):
            os.kill(client.pid, 0)


def test_the_pipe_directory_is_the_only_mps_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_MPS_LOG_DIRECTORY", "/elsewhere")
    text = "emit('finished', mps={k: v for k, v in os.environ.items() if k.startswith('CUDA_MPS_')})"
    with Clients() as clients:
        outcome = clients.start(program(text), tmp_path, "one").finish(20)
    assert outcome.events[0].members["mps"] == {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
