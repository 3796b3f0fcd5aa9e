"""However the tour ends, nothing that it started goes on."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from examples.demo.scenes import standby
from tests.harness import leftovers
from tests.unit.demo import scratch

pytestmark = pytest.mark.slow(seconds=60, reason="starts the demo for each signal")


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def endings(first: str, *others: str) -> list[object]:
    """Each signal at the first moment, and one at each of the others; every signal at these is for `make soak`."""
    return [
        *(pytest.param(first, number) for number in SIGNALS),
        *(
            pytest.param(moment, number, marks=[] if number == signal.SIGTERM else [pytest.mark.soak])
            for moment in others
            for number in SIGNALS
        ),
    ]


@pytest.mark.parametrize(
    ("moment", "number"), endings("client 1: runs its first kernel", "get_client_list", "$ mpsguard-ctl clients")
)
def test_a_signal_ends_everything(moment: str, number: signal.Signals) -> None:
    with scratch.directory() as place, scratch.start(place, "--fast") as process:
        ends_all(place, process, moment, number)


@pytest.mark.parametrize(("moment", "number"), endings("a standby is ready", "$ mpsguard run"))
def test_a_signal_ends_a_service_and_its_standby_too(moment: str, number: signal.Signals) -> None:
    with scratch.directory() as place, scratch.start_scene(standby.SCENE.name, place) as process:
        ends_all(place, process, moment, number)


def ends_all(place: Path, process: "subprocess.Popen[str]", moment: str, number: signal.Signals) -> None:
    """Send the signal when that is on the screen; nothing is left."""
    assert process.stdout is not None
    next(line for line in process.stdout if moment in line)
    # As the terminal does it: to the whole group, the clients and the guard included.
    os.killpg(process.pid, number)
    _, err = process.communicate(timeout=scratch.DEADLINE)
    assert process.returncode == 1
    assert err.startswith("demo: stopped by SIG")
    assert err.count("\n") == 1
    assert (leftovers.find(place), list(place.iterdir())) == ([], [])


def test_a_reader_that_leaves_ends_everything() -> None:
    with scratch.directory() as place, scratch.start(place, "--fast") as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(scratch.DEADLINE) == 1
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert (leftovers.find(place), list(place.iterdir())) == ([], [])


def test_without_a_gpu_the_real_tour_is_one_line_and_77() -> None:
    with scratch.directory() as place, scratch.start(place, "--real", PATH=str(place)) as process:
        out, err = process.communicate(timeout=scratch.DEADLINE)
        assert (process.returncode, out) == (77, "")
        assert err == "demo: not run: nvidia-smi names no NVIDIA GPU on this machine\n"


def test_an_unknown_option_is_one_line_and_2() -> None:
    with scratch.directory() as place, scratch.start(place, "--no-such-thing") as process:
        out, err = process.communicate(timeout=scratch.DEADLINE)
        assert (process.returncode, out, err.count("\n")) == (2, "", 1)
