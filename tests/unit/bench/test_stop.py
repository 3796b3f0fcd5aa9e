"""An end from outside finds what was started owned and whole."""

import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.bench.core.client import Clients
from tests.bench.core.stop import StopRunError, stoppable, uninterrupted


def nested(done: list[str]) -> None:
    with stoppable(60):
        with uninterrupted():
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                done.append("inner")
            done.append("outer")
        done.append("after")


def afterwards(done: list[str]) -> None:
    with stoppable(60):
        with uninterrupted():
            done.append("block")
        signal.raise_signal(signal.SIGTERM)
        done.append("after")


def test_a_stop_in_an_uninterrupted_block_comes_at_its_end() -> None:
    done: list[str] = []
    with pytest.raises(StopRunError, match="SIGTERM"):
        nested(done)
    assert done == ["inner", "outer"]


def test_a_stop_outside_of_one_comes_at_once() -> None:
    done: list[str] = []
    with pytest.raises(StopRunError, match="SIGTERM"):
        afterwards(done)
    assert done == ["block"]


def test_a_stop_while_a_client_starts_leaves_it_owned_and_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = threading._start_new_thread  # type: ignore[attr-defined]

    def start_and_stop(*arguments: object) -> object:
        thread = real(*arguments)
        signal.raise_signal(signal.SIGTERM)
        return thread

    unraisable: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    monkeypatch.setattr(threading, "_start_new_thread", start_and_stop)
    clients = Clients()
    with pytest.raises(StopRunError), stoppable(60), clients:
        clients.start([sys.executable, "-c", "input()"], tmp_path, "waiting")
    (client,) = clients._started
    assert (client.ended_with() is not None, client._reader.is_alive(), unraisable) == (True, False, [])
