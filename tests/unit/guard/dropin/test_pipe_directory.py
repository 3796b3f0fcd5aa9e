"""The directories that an environment names."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from mpsguard.guard.dropin import pipe_directory as pipes
from mpsguard.guard.dropin.pipe_directory import PipeDirectoryError


@pytest.mark.parametrize(
    ("value", "directory"),
    [
        (None, "/tmp/nvidia-mps"),
        # An empty variable of a unit or a compose file. The vendor's daemon makes its sockets in / then (535, 550).
        ("", "/tmp/nvidia-mps"),
        # aws/amazon-ecs-ami #771, bottlerocket-os/bottlerocket #4673, NVIDIA/k8s-device-plugin #1614, #1595
        ("/run/mps-ecs", "/run/mps-ecs"),
        ("/mps/pipe", "/mps/pipe"),
        ("/mps/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe"),
        ("/var/run/nvidia-mps", "/var/run/nvidia-mps"),
        # eth-cscs/cscs-docs #12 and job scripts: the home's or the job's own
        ("/tmp/mps-pipe_4242", "/tmp/mps-pipe_4242"),
        ("~/.nvidia-mps_node_gpu_0", "{cwd}/~/.nvidia-mps_node_gpu_0"),
        ("mps", "{cwd}/mps"),
        ("./mps", "{cwd}/mps"),
        # Not shortened: what is before it may be a link.
        ("a/../mps", "{cwd}/a/../mps"),
        ("/run/mps/", "/run/mps"),
        ("/" + "0" * 87, "/" + "0" * 87),
    ],
)
def test_the_pipe_directory_is_absolute(monkeypatch: pytest.MonkeyPatch, value: str | None, directory: str) -> None:
    # Short: a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="mg-") as cwd:
        monkeypatch.chdir(cwd)
        found = pipes.pipe_directory({} if value is None else {pipes.PIPES: value})
        monkeypatch.chdir("/")
    assert found == Path(directory.format(cwd=cwd))


@pytest.mark.parametrize("value", ["/" + "0" * 88, "/" + "ü" * 44, "/" + "0" * 4096])
def test_one_in_which_no_socket_can_be_is_one_sentence(value: str) -> None:
    with pytest.raises(PipeDirectoryError, match=r"CUDA_MPS_PIPE_DIRECTORY: [0-9]+ bytes too long") as raised:
        pipes.pipe_directory({pipes.PIPES: value})
    assert "\n" not in str(raised.value)


def test_a_working_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(FileNotFoundError):
        pipes.pipe_directory({pipes.PIPES: "mps"})


def test_the_log_directory_may_have_any_length() -> None:
    assert pipes.log_directory({}) == Path("/var/log/nvidia-mps")
    assert pipes.log_directory({pipes.LOGS: "/" + "0" * 200}) == Path("/" + "0" * 200)
