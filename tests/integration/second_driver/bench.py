"""An unmodified program under the preload, beside a stand-in for the driver, in a lane that faults."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from mpsguard.preload import library
from tests.harness import preload_library
from tests.harness.kept import compiler, kept
from tests.harness.whole_lines import whole_lines

HERE: Final = Path(__file__).resolve().parent
UVM_DEVICE: Final = "/memfd:nvidia-uvm (deleted)"
"""What /proc/self/fd shows for the stand-in's UVM device."""
SPARE: Final = 4096
"""MiB: more than any program here has."""
ONCE: Final = {"MPSGUARD_SECOND_EPOCH_MS": "100000"}
"""One epoch, at the first wait of the program."""
BESIDE: Final = {"MPSGUARD_SECOND_REPETITION": "beside"}
_SECONDS: Final = 120.0


@dataclass(frozen=True)
class Ended:
    """How the program ended: what it printed, and what the preload reported of the takeover (None: nothing)."""

    said: str
    report: dict[str, Any] | None
    other_lane_lives: bool
    """Whether the lane that it goes over to has had no fault."""
    attempts: tuple[dict[str, Any], ...] = ()
    """All that was reported; the last one is ``report``."""

    @property
    def reason(self) -> str | None:
        """Why the program was not taken over."""
        reason: str | None = None if self.report is None else self.report["reason"]
        return reason

    @property
    def repeated(self) -> int:
        """How many calls of the log were made again."""
        repeated: int = 0 if self.report is None else self.report["repeated"]
        return repeated

    @property
    def was_alone(self) -> bool:
        """Whether they were made again alone."""
        return self.report is not None and self.report["alone"] > 0


@dataclass(frozen=True)
class Started:
    """A program that runs."""

    process: subprocess.Popen[str]
    report: Path
    other_lane: Path

    def end(self) -> Ended:
        """Wait for its end; a wrong content fails the test."""
        said, errors = self.process.communicate(timeout=_SECONDS)
        assert (self.process.returncode, errors) == (0, ""), said
        lines = whole_lines(self.report)
        reports = tuple(json.loads(line) for line in lines)
        return Ended(said.strip(), reports[-1] if reports else None, not (self.other_lane / "fault").exists(), reports)

    def close(self) -> None:
        """Kill it if it runs still."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@dataclass(frozen=True)
class Bench:
    """A directory with libcuda.so.1 (the stand-in), libmpsguard.so, the program and its image."""

    built: Path

    def run(
        self,
        work: Path,
        mode: str,
        seed: int,
        *,
        threads: int = 3,
        operations: int = 60,
        when: str = "idle",
        spare: int | None = None,
        requests: int = 1,
        **variables: str,
    ) -> Ended:
        """Run the program to its end in two lanes below ``work``; a wrong content fails the test.

        ``spare`` is in MiB; None: no epochs. With some, they come as often as they can. ``requests``: for moves.
        """
        command = self.program(seed, threads=threads, operations=operations, when=when, requests=requests)
        return self._run(work, mode, command, spare, variables)

    def program(self, seed: int, *, threads: int, operations: int, when: str, requests: int = 1) -> list[str]:
        """The command line of program.c."""
        arguments = [str(seed), str(threads), str(operations), when, str(self.built / "image.o"), str(requests)]
        return [str(self.built / "program"), *arguments]

    def case(
        self,
        work: Path,
        mode: str,
        name: str,
        *,
        program: str = "cases",
        spare: int | None = None,
        **variables: str,
    ) -> Ended:
        """Run one case of cases.c to its end."""
        images = [str(self.built / image) for image in ("image.o", "pointers.o", "variables.o")]
        return self._run(work, mode, [str(self.built / program), name, *images], spare, variables)

    def _run(self, work: Path, mode: str, command: list[str], spare: int | None, variables: dict[str, str]) -> Ended:
        started = self.start(work, mode, command, spare, variables)
        try:
            return started.end()
        finally:
            started.close()

    def start(
        self,
        work: Path,
        mode: str,
        command: list[str],
        spare: int | None,
        variables: dict[str, str],
        *,
        lanes: Path | None = None,
    ) -> Started:
        """Start a program in two lanes below ``lanes``, or below ``work``; the caller ends it."""
        first, second = ((lanes or work) / name for name in ("first", "second"))
        report = work / "report"
        for directory in (first, second, work):
            directory.mkdir(parents=True, exist_ok=True)
        # The guard's page, on which program.c asks itself.
        (second / "moves").touch()
        base = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "MPSGUARD_", "CUDA_"))}
        settings = library.PreloadSettings(
            second_driver=library.SecondDriver(mode),
            second_pipe_directory=second,
            second_report=report,
            second_spare=spare,
            second_epoch=1 if spare else None,
        )
        environment = library.environment(settings, base, library=self.built / library.NAME) | {
            "MPSGUARD_ZONES_UVM_DEVICE": UVM_DEVICE,
            "CUDA_MPS_PIPE_DIRECTORY": str(first),
            **variables,
        }
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=work
        )
        return Started(process, report, second)


def make(directory: Path) -> Bench:
    """Build everything into ``directory``. Skips without gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the preload cannot be built")
    parts = [*sorted(HERE.glob("*.[chS]")), Path(__file__)]
    built = kept("second-driver", *parts, compiler("gcc"), make=_build)
    shutil.copytree(built, directory, dirs_exist_ok=True)
    shutil.copy(preload_library.built(), directory)
    return Bench(directory)


def _build(directory: Path) -> None:
    driver, libraries = directory / "libcuda.so.1", ["-lpthread", "-ldl"]
    hidden = ["-fPIC", "-fvisibility=hidden", "-Wl,-soname,libcuda.so.1"]
    # As the driver is linked: what it calls of itself is its own.
    _compile("-shared", "-Wl,-Bsymbolic", *hidden, "-o", driver, HERE / "stand_in.c", "-lpthread")
    _compile("-c", "-o", directory / "image.o", HERE / "image.S")
    _compile("-c", "-DPOINTERS", "-o", directory / "pointers.o", HERE / "image.S")
    _compile("-c", "-DVARIABLES_ALONE", "-o", directory / "variables.o", HERE / "image.S")
    for program in ("program", "cases", "served"):
        found = ["-Wl,-rpath,$ORIGIN", "-Wl,--export-dynamic-symbol=nanosleep"]
        _compile("-o", directory / program, HERE / f"{program}.c", *found, driver, *libraries)
    # The driver under another name, and a library of another tool before it.
    renamed = directory / "libother.so"
    other = ["-shared", "-Wl,-Bsymbolic", "-fPIC", "-Wl,-soname,libother.so"]
    _compile(*other, "-o", renamed, HERE / "stand_in.c", *libraries)
    _compile("-o", directory / "cases-renamed", HERE / "cases.c", *found, renamed, *libraries)
    _compile("-shared", "-fPIC", "-o", directory / "libtool.so", HERE / "tool.c")


def _compile(*words: str | Path) -> None:
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")
