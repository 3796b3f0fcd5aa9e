"""Scene 6 says what came, and nothing better; what it starts for that is found and ended."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from examples.demo import machine, tour
from examples.demo.machine import Machine, SimulatedDemoPrograms
from examples.demo.reader import Reader
from examples.demo.scenes import standby
from examples.demo.screen import Screen
from examples.demo.stage import Place, Stage
from fault_injection.holders import holders
from fault_injection.takeover import model
from fault_injection.takeover.model import Request
from mpsguard import client
from tests.bench.core.bench import Bench
from tests.harness import leftovers
from tests.unit.demo import scratch

pytestmark = pytest.mark.slow(seconds=5, reason="runs a scene of the demo")

REQUEST = Request("demo", tokens=4, width=40)
ANSWER = model.stream(REQUEST)
TOKEN = REQUEST.width


@contextmanager
def answering(answer: bytes) -> Iterator[int]:
    """A server that gives one client that answer; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                assert sock.recv(100) == REQUEST.line()
                sock.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join()


@pytest.mark.parametrize(
    ("answer", "told", "whole"),
    [
        (ANSWER, "4 of 4 tokens, none twice", True),
        (ANSWER[: 2 * TOKEN], "2 of 4 tokens, cut off", False),
        (ANSWER[: 2 * TOKEN + 7], "2 of 4 tokens, cut off", False),
        (b"", "0 of 4 tokens, cut off", False),
        (ANSWER[: 2 * TOKEN] + ANSWER[TOKEN : 3 * TOKEN], "4 of 4 tokens, not the right ones", False),
        (ANSWER + ANSWER[-TOKEN:], "5 of 4 tokens, not the right ones", False),
        (ANSWER[:TOKEN] + ANSWER[2 * TOKEN :], "3 of 4 tokens, not the right ones", False),
    ],
    ids=["whole", "cut", "cut inside a token", "nothing", "a token twice", "one too many", "one lost"],
)
def test_a_reader_tells_what_came(answer: bytes, told: str, whole: bool) -> None:
    with answering(answer) as port, Reader(port, REQUEST) as reader:
        reader.read_all()
        assert (reader.summary(), reader.whole) == (told, whole)


@pytest.fixture
def stage() -> Iterator[Stage]:
    with scratch.directory() as root:
        programs = machine.simulated().build(root)
        yield Stage(Bench(root, programs, quick=True, say=lambda _: None), programs, Screen(transcript=True, fast=True))


def kill_all(place: Place) -> None:
    for pid in place.target.ui.all_clients():
        os.kill(pid, signal.SIGKILL)


def test_a_service_that_ends_otherwise_than_announced_is_reported(stage: Stage) -> None:
    with stage.stock() as place:
        answer, service = standby.stock(place, kill_all)
    assert (answer.text, service.text) == ("client: 20 of 40 tokens, cut off", "service: killed by SIGKILL")
    assert (answer.harm, service.as_expected) == (True, False)


def test_the_vaults_holder_is_among_what_would_be_left(stage: Stage) -> None:
    root = stage.bench.root
    with stage.guarded(standby.SCENE.options) as place:
        with client.Session("held", socket=str(place.guard.vault), keep=None) as session:
            fd = os.memfd_create("held")
            try:
                os.ftruncate(fd, 4096)
                session.create("region", [client.Chunk(fd, 4096)])
            finally:
                os.close(fd)
        run_directory = place.guard.config.parent / "run"
        (holder,) = holders(run_directory)
        found = leftovers.find(root)
        assert holder in {each.key.pid for each in found}
        for each in found:
            each.close()
    assert (holders(run_directory), leftovers.find(root)) == ([], [])


def test_on_a_gpu_it_is_left_out_and_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    on = Machine("as if on a GPU", lambda _: SimulatedDemoPrograms(simulated=False))
    assert tour.play([standby.SCENE], on, Screen(transcript=True, fast=True), scratch.DEADLINE) == []
    printed = capsys.readouterr().out
    assert "6 a standby takes over" in printed
    assert "scripts/gpu-suite failover" in " ".join(printed.split())
