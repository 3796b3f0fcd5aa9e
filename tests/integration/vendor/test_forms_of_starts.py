"""Directories and variables with which scripts start MPS: our program beside the vendor's, in the same environment."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from mpsguard.linux.processes import procfs
from tests.harness.waiting import PATIENCE
from tests.integration.vendor.site import Site, newest
from tests.vendor import BRANCHES, VendorMps

pytestmark = [pytest.mark.vendor, pytest.mark.slow(seconds=60, reason="starts two daemons for each form")]

AT_ONCE = 4
"""Forms that are tried at the same time; most of the time is waiting."""
QUERIES = "get_default_active_thread_percentage\nget_default_client_priority\n"


OURS = pytest.mark.parametrize(
    "vendor_mps", [*(pytest.param(each, marks=pytest.mark.soak) for each in BRANCHES[:-1]), BRANCHES[-1]], indirect=True
)
"""Ours does the same with each branch, if the vendor's daemons do: they are compared with each other."""
OLDER = pytest.mark.parametrize("vendor_mps", BRANCHES[:-1], indirect=True)


@pytest.fixture
def site(vendor_mps: VendorMps) -> Iterator[Site]:
    with Site(vendor_mps) as there:
        yield there


@pytest.fixture
def latest() -> Iterator[Site]:
    with Site(newest()) as there:
        yield there


def run(
    site: Site,
    program: Path,
    *arguments: str,
    at: Path,
    variables: Mapping[str, str],
    given: str = "",
    umask: int = -1,
) -> subprocess.CompletedProcess[str]:
    """Run a program in the directory ``at``."""
    return subprocess.run(
        [program, *arguments],
        input=given,
        env={**site.environment, **variables},
        cwd=at,
        umask=umask,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def answers(
    site: Site, program: Path, name: str, make: Callable[[Path], None], *, umask: int = -1, variables: Mapping[str, str]
) -> tuple[int, str]:
    """Start, ask and end a daemon in a working directory of its own: status of the start, and answers."""
    at = site.root / f"{name}-{program == site.program:d}"
    at.mkdir(mode=0o755)
    make(at)
    started = run(site, program, "-d", at=at, variables=variables, umask=umask)
    asked = run(site, program, at=at, variables=variables, given=QUERIES)
    run(site, program, at=at, variables=variables, given="quit")
    for link in at.glob("*/.mpsguard/run"):
        if link.is_symlink():
            shutil.rmtree(link.readlink())
    return started.returncode, asked.stdout


def _nothing(_: Path) -> None:
    """Leave the working directory empty."""


class Form(NamedTuple):
    """A form of the directories: pipe directory, log directory, and what is there before."""

    source: str
    pipes: str
    logs: str
    make: Callable[[Path], None] = _nothing
    umask: int = -1


def _mps_and_log(at: Path) -> None:
    (at / "mps").mkdir()
    (at / "log").mkdir()


def _group_writable(at: Path) -> None:
    _mps_and_log(at)
    for directory in at.iterdir():
        directory.chmod(0o775)


def _blanks(at: Path) -> None:
    (at / "a b").mkdir()
    (at / "l l").mkdir()


def _link(at: Path) -> None:
    (at / "target").mkdir()
    (at / "mps").symlink_to("target")


def _file(at: Path) -> None:
    (at / "mps").touch()


def _log_file(at: Path) -> None:
    (at / "log").touch()


DIRECTORIES = [
    Form("hikunpeng.com, MPS guide: below the working directory", "mps", "log", _mps_and_log),
    Form("the same with a dot", "./mps", "./log", _mps_and_log),
    Form("zbk2012's and others' scripts: what is missing is made", "mps", "log"),
    Form("awslabs' samples: one directory for both", "mps", "mps"),
    Form("a note of a public repository: the logs below the pipes", "mps", "mps/log-files", _mps_and_log),
    Form("a trailing slash", "mps/", "log/", _mps_and_log),
    Form("..", "log/../mps", "mps/../log", _mps_and_log),
    Form("blanks", "a b", "l l", _blanks),
    Form("a percent sign, as systemd leaves of %%", "%s%n", "%d"),
    Form("a quotation mark", "it's", '"log"'),
    Form("a scratch directory that is a link", "mps", "log", _link),
    Form("Debian's umask for users", "mps", "log", _group_writable, umask=0o002),
    Form("a file in its place", "mps", "log", _file),
    Form("below /proc", "/proc/mps", "log"),
    Form("a log directory that is a file", "mps", "log", _log_file),
    Form("a log directory below /proc", "mps", "/proc/log"),
    Form("eth-cscs and others: a home, a host and a job in the name", f"{'nvidia-mps_gpu-node-0123_' * 2}job", "log"),
    Form("too long", "0" * 100, "log"),
]


def directories(site: Site, program: Path) -> list[tuple[str, tuple[int, str]]]:
    """What a daemon says in each form of directories."""

    def said(number: int, form: Form) -> tuple[str, tuple[int, str]]:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": form.pipes, "CUDA_MPS_LOG_DIRECTORY": form.logs}
        return form.source, answers(site, program, f"d{number}", form.make, umask=form.umask, variables=variables)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(said, range(len(DIRECTORIES)), DIRECTORIES))


@OURS
def test_directories(site: Site) -> None:
    assert directories(site, site.program) == directories(site, site.vendor)


@OLDER
def test_an_older_daemon_takes_the_same_directories(site: Site, latest: Site) -> None:
    assert directories(site, site.vendor) == directories(latest, latest.vendor)


class Variables(NamedTuple):
    """Variables for the daemon's start."""

    source: str
    variables: Mapping[str, str]


SETTINGS = [
    Variables("NVIDIA/nvidia-container-toolkit #285", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}),
    Variables("with a percent sign", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37%"}),
    Variables("one third", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": " 33.333333 "}),
    Variables(
        "other forms of numbers", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "0x10", "CUDA_MPS_CLIENT_PRIORITY": "01"}
    ),
    Variables("nothing", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "", "CUDA_MPS_CLIENT_PRIORITY": ""}),
    Variables("too much", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "101", "CUDA_MPS_CLIENT_PRIORITY": "2"}),
    Variables("words", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "half", "CUDA_MPS_CLIENT_PRIORITY": "low"}),
    Variables("MPS manual", {"CUDA_MPS_CLIENT_PRIORITY": "1", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G,1=512MB"}),
    Variables("ray-project/ray #7014: a job without a GPU", {"CUDA_VISIBLE_DEVICES": "NoDevFiles"}),
    Variables("a trailing comma", {"CUDA_VISIBLE_DEVICES": "0,1,"}),
    Variables("an empty list", {"CUDA_VISIBLE_DEVICES": ""}),
]


def settings(site: Site, program: Path) -> list[tuple[str, tuple[int, str]]]:
    """What a daemon says with each form of variables."""

    def said(number: int, form: Variables) -> tuple[str, tuple[int, str]]:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": "mps", "CUDA_MPS_LOG_DIRECTORY": "log", **form.variables}
        return form.source, answers(site, program, f"s{number}", _mps_and_log, variables=variables)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(said, range(len(SETTINGS)), SETTINGS))


@OURS
def test_settings(site: Site) -> None:
    assert settings(site, site.program) == settings(site, site.vendor)


@OLDER
def test_an_older_daemon_takes_the_same_settings(site: Site, latest: Site) -> None:
    assert settings(site, site.vendor) == settings(latest, latest.vendor)


def test_servers_get_what_theirs_would_get() -> None:
    passed_on = {
        # NVIDIA/pyxis #27
        "CUDA_DEVICE_MAX_CONNECTIONS": "2",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
    }
    governed = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37%", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3G,x=y"}
    for visible, shown in (("0-3", "0"), ("NoDevFiles", "NoDevFiles"), ("0,0", "0,0"), ("", "")):
        with Site(newest()) as site:
            started = site.run("-d", variables={**passed_on, **governed, "CUDA_VISIBLE_DEVICES": visible})
            assert started.returncode == 0
            (note,) = started.stderr.splitlines()
            assert "x=y" in note
            (lane,) = site.processes("nvidia-cuda-mps-control -d")
            environment = procfs.environment(lane)
            vendors = {name: value for name, value in environment.items() if name.startswith("CUDA_")}
            own = {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
            assert {name: value for name, value in vendors.items() if name not in own} == {
                **passed_on,
                "CUDA_VISIBLE_DEVICES": shown,
            }
            asked = site.run(given=f"{QUERIES}get_default_device_pinned_mem_limit 0\n")
            assert asked.stdout == "37.0\n0\n3G\n"
            again = site.run("-d", variables=governed)
            assert again.returncode == 0
            assert all(name in again.stderr for name in governed)
            assert site.run("-q").returncode == 0
