"""What a helper process inherits, and that nothing is left of it behind its end."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mpsguard
from mpsguard.linux.processes import helper_process
from mpsguard.linux.processes.helper_process import (
    HelperProcess,
    module_command,
    service_environment,
    user_environment,
)
from tests.harness.descriptors_left import descriptors_left
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import PATIENCE

ROOT = Path(mpsguard.__file__).parents[1]
SLEEP = [sys.executable, "-I", "-c", "import signal; signal.pause()"]
PRINT_PATH = """
import sys
sys.path.insert(0, {root!r})
from mpsguard.linux.processes.helper_process import HelperProcess
import os, subprocess
program = "import os, sys; print(os.getcwd(), *sys.path, sep='|')"
helper = HelperProcess([sys.executable, "-P", "-c", program], os.environ, stdout=subprocess.PIPE)
print(helper.output.read().decode())
helper.wait()
"""


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert opened_since(before) == []


def test_it_has_what_it_is_given_and_nothing_else() -> None:
    reading, writing = os.pipe()
    program = (
        "import os, sys; os.write(int(sys.argv[1]), repr((os.getcwd(), os.getsid(0) == os.getpid(), "
        "sorted(os.environ), len(os.listdir('/proc/self/fd')))).encode())"
    )
    helper = HelperProcess([sys.executable, "-I", "-c", program, str(writing)], {"A": "b"}, fds=(writing,))
    os.close(writing)
    with open(reading, "rb") as told:
        # Its standard streams, the pipe, and the directory that it lists.
        variables = ["A", "LC_CTYPE"]  # Python sets the latter in the C locale.
        assert told.read().decode() == repr(("/", True, variables, 5))
    assert helper.wait(PATIENCE) == 0


def test_a_module_of_this_package_is_found_without_a_path(tmp_path: Path) -> None:
    """It is no module that does anything: its end says whether it was found, and its name."""
    done = HelperProcess(
        module_command("mpsguard.images.copier", "x"), {}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    said = done.output.read().decode()
    done.output.close()
    assert done.wait(PATIENCE) == 1
    assert "ValueError: invalid literal for int() with base 10: 'x'" in said
    assert str(ROOT / "mpsguard/images/copier/__main__.py") in said


def test_a_module_is_found_by_its_name_once_its_file_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in an upgrade to another Python, of which the parent is of the former release."""
    monkeypatch.setattr(helper_process, "_RUN_MODULE", str(ROOT / "gone" / "run_module.py"))
    command = module_command("mpsguard.images.copier", "x")
    assert command[1:] == ["-P", "-m", "mpsguard.images.copier", "x"]
    environment = {"PYTHONPATH": str(ROOT)}  # It is not installed here.
    done = HelperProcess(command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with done.output as output:
        assert "invalid literal for int" in output.read().decode()
    assert done.wait(PATIENCE) == 1


def test_a_relative_python_path_means_the_same_in_another_directory(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PRINT_PATH.format(root=str(ROOT))],
        env={"PYTHONPATH": "here::" + str(tmp_path / "there")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    directory, *path = done.stdout.strip().split("|")
    assert (directory, path[:2]) == ("/", [str(tmp_path / "here"), str(tmp_path / "there")])
    assert str(tmp_path) not in path


def test_one_that_does_not_end_by_itself_is_killed() -> None:
    helper = HelperProcess(SLEEP, {})
    assert helper.poll() is None
    assert helper.wait(0.01) is None
    assert helper.end(0.01, PATIENCE)
    assert (helper.poll(), helper.pidfd) == (-9, -1)


def test_one_that_is_abandoned_has_been_killed() -> None:
    helper = HelperProcess(SLEEP, {})
    ended = os.pidfd_open(helper.pid)
    helper.abandon()
    assert helper.poll() == -9
    assert os.waitid(os.P_PIDFD, ended, os.WEXITED) is not None
    os.close(ended)


def test_one_that_cannot_be_started_leaves_nothing() -> None:
    before, failed = open_descriptors(), 0
    while True:
        with descriptors_left(failed):
            try:
                helper = HelperProcess(SLEEP, {})
            except OSError:
                helper = None
        if helper is not None:
            break
        assert opened_since(before) == []
        failed += 1
    assert failed > 0
    assert helper.end(0.0, PATIENCE)


def test_a_service_hands_on_little_and_a_program_all_but_its_own() -> None:
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": "/path",
        "SECRET": "x",
        "CUDA_CACHE_PATH": "/cache",
        "LD_PRELOAD": "libmpsguard.so",
        "NOTIFY_SOCKET": "/run/notify",
        "MPSGUARD_IMAGE": "image",
        "CUDA_VISIBLE_DEVICES": "1",
    }
    assert service_environment(inherited) == {"PATH": "/bin", "PYTHONPATH": "/path"}
    assert user_environment(inherited, but=["CUDA_VISIBLE_DEVICES"]).keys() == {
        "PATH",
        "PYTHONPATH",
        "SECRET",
        "CUDA_CACHE_PATH",
    }
