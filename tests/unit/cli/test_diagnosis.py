"""What doctor makes of a driver, a namespace and a directory, each in a directory of the test's own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.cli.diagnosis import domains, driver, machine, programs
from mpsguard.cli.diagnosis.finding import Finding, Grade
from mpsguard.guard.broker import public_sockets
from mpsguard.guard.config import DomainConfig
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.file_lock import FileLock


def modules(root: Path, versions: dict[str, str | None], *, device: bool = True) -> Finding:
    loaded, devices = root / "module", root / "dev"
    loaded.mkdir()
    devices.mkdir()
    for name, version in versions.items():
        (loaded / name).mkdir()
        if version is not None:
            (loaded / name / "version").write_text(f"{version}\n")
    if device:
        (devices / "nvidia-uvm").touch()
    return driver.modules(loaded, devices)


@pytest.mark.parametrize(
    ("versions", "device", "grade", "words"),
    [
        ({"nvidia": "580.1", "nvidia_uvm": "580.1"}, True, Grade.OK, ("580.1",)),
        ({"nvidia": "580.1", "nvidia_uvm": None}, True, Grade.OK, ("580.1",)),
        ({"nvidia": "580.1", "nvidia_uvm": "575.2"}, True, Grade.PROBLEM, ("580.1", "575.2")),
        ({"nvidia": "580.1"}, True, Grade.PROBLEM, ("not loaded: nvidia_uvm",)),
        ({}, True, Grade.PROBLEM, ("nvidia and nvidia_uvm",)),
        ({"nvidia": "580.1", "nvidia_uvm": "580.1"}, False, Grade.PROBLEM, ("nvidia-uvm is not there",)),
    ],
    ids=["both", "uvm says none", "two versions", "one missing", "both missing", "no device"],
)
def test_the_modules_of_a_driver(
    tmp_path: Path, versions: dict[str, str | None], device: bool, grade: Grade, words: tuple[str, ...]
) -> None:
    found = modules(tmp_path, versions, device=device)
    assert found.grade is grade
    assert all(word in found.text for word in words), found.text
    assert bool(found.fix) == (grade is Grade.PROBLEM)


def test_a_container_of_its_own_is_told_from_the_machine(tmp_path: Path) -> None:
    for number, grade in ((4026531836, Grade.OK), (4026532441, Grade.NOTE)):
        link = tmp_path / str(number)
        link.symlink_to(f"pid:[{number}]")
        assert machine.pid_namespace(link).grade is grade


@pytest.fixture
def open_way() -> Iterator[Path]:
    """A directory that every user can reach; pytest's own are their user's alone."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o711)
        yield Path(directory)


def test_a_directory_on_the_way_that_others_cannot_pass_is_named(open_way: Path) -> None:
    def finding() -> Finding:
        found = domains.examine(DomainConfig(pipe_directory=str(open_way / "a" / "pipe")))
        return next(each for each in found if "way to" in each.subject)

    (open_way / "a" / "pipe").mkdir(parents=True)
    assert finding().grade is Grade.OK
    (open_way / "a").chmod(0o750)
    assert finding().grade is Grade.PROBLEM
    assert finding().fix == f"chmod o+x {open_way / 'a'}"


def test_a_directory_that_cannot_be_looked_at_is_a_finding(open_way: Path) -> None:
    # Longer than a name may be: looking at it is refused to root, too.
    directory = open_way / ("x" * 300)
    found = {each.subject: each.grade for each in domains.examine(DomainConfig(pipe_directory=str(directory)))}
    assert found[f"default: {directory}"] is Grade.PROBLEM


def test_a_program_that_was_told_to_use_the_guard_and_does_not_is_found(tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.touch()
    script = f"import sys; kept = open({str(device)!r}); print(1, flush=True); sys.stdin.read()"
    tellings = {"past": str(tmp_path / "pipe"), "by class": str(tmp_path / "pipe" / "batch"), "elsewhere": "/other"}
    started = {}
    try:
        for name, told in tellings.items():
            environment = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": told}
            started[name] = subprocess.Popen(
                [sys.executable, "-c", script], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            output = started[name].stdout
            assert output is not None
            output.readline()
        pids = {name: process.pid for name, process in started.items()}
        found = set(programs.told([str(tmp_path / "pipe")], device, {}))
        assert found == {pids["past"], pids["by class"]}
        assert set(programs.told([str(tmp_path / "pipe")], device, {pids["past"]})) == {pids["by class"]}
        assert not set(programs.told([str(tmp_path / "pipe")], tmp_path / "another device", {}))
    finally:
        for process in started.values():
            process.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
def test_a_guard_whose_lock_a_user_cannot_look_at_is_no_problem(open_way: Path) -> None:
    public = open_way / "mps"
    program = (
        "import os, sys\n"
        "from mpsguard.guard import config\n"
        "from mpsguard.cli.diagnosis import domains\n"
        "os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
        "found = domains.examine(config.DomainConfig(name='d', pipe_directory=sys.argv[1]))\n"
        "print(next(each.grade for each in found if each.subject == f'd: {sys.argv[1]}'))\n"
    )

    def grade() -> str:
        command = [sys.executable, "-c", program, str(public)]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout.strip()

    with Directory.make(public, 0o711) as directory, public_sockets.listen(directory, "control") as listener:
        lock = FileLock.take(directory, "control_lock")
        assert grade() == "note"
        lock.close()
        listener.close()
        assert grade() == "problem"
