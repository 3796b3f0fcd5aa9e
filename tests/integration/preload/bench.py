"""The preload beside a stub libcuda: built for a test session, plainly or under a sanitizer, and run as users would."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from mpsguard.preload import library
from tests.harness import preload_library
from tests.harness.kept import compiler, kept

HERE = Path(__file__).resolve().parent
UVM_DEVICE = "/memfd:nvidia-uvm (deleted)"
"""What /proc/self/fd shows for the stub's UVM device, which is a memfd."""
SECONDS = 300.0


@dataclass(frozen=True)
class Bench:
    """A directory with libcuda.so.1 (the stub), libmpsguard.so, and programs and libraries that use them."""

    directory: Path
    first: str | None
    """A library that must be loaded before all others: the sanitizer's."""

    def environment(self, settings: library.PreloadSettings | None, **more: str) -> dict[str, str]:
        """Of a program under the preload; None: without it."""
        base = {name: value for name, value in os.environ.items() if not name.startswith(("LD_", "MPSGUARD_"))}
        # What the library keeps to the end it keeps on purpose; what it must not lose, the stub counts.
        base |= {"ASAN_OPTIONS": "detect_leaks=0", "LD_LIBRARY_PATH": str(self.directory), **more}
        if settings is None:
            return base
        base = library.environment(settings, base, library=self.directory / library.NAME)
        base["MPSGUARD_ZONES_UVM_DEVICE"] = UVM_DEVICE
        if self.first is not None:
            base["LD_PRELOAD"] = f"{self.first} {base['LD_PRELOAD']}"
        return base | more

    def run(
        self, way: str, scenario: str, settings: library.PreloadSettings | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        """Run one scenario under the preload to its end."""
        return subprocess.run(
            [str(self.directory / "program"), way, scenario],
            env=self.environment(settings or library.PreloadSettings(), **more),
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def passes(
        self, way: str, scenario: str, settings: library.PreloadSettings | None = None, **more: str
    ) -> dict[str, int]:
        """Run one scenario, which must hold, and return what the preload counted."""
        report = self.directory / f"report-{os.urandom(6).hex()}"
        done = self.run(way, scenario, settings, MPSGUARD_ZONES_REPORT=str(report), **more)
        assert (done.returncode, done.stderr) == (0, "")
        if not report.exists():
            return {}
        (line,) = report.read_text(encoding="ascii").splitlines()
        counted: dict[str, int] = json.loads(line)
        return counted


def compile_c(target: Path, names: list[str], *flags: str) -> None:
    """Compile C files of this directory with gcc."""
    command = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-g", "-o", str(target)]
    command += [*(str(HERE / name) for name in names), *flags, "-ldl", "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def make(directory: Path, sanitizer: str | None = None) -> Bench:
    """Put everything into ``directory``; ``sanitizer`` is a value of gcc's -fsanitize. Skips without gcc."""
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the preload cannot be built")
    flags = [] if sanitizer is None else [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all"]
    parts: list[Path | str] = [*sorted(HERE.glob("*.[ch]")), Path(__file__), *flags]
    built = kept("preload", *parts, compiler("gcc"), make=partial(_build, flags=flags))
    shutil.copytree(built, directory, dirs_exist_ok=True)
    shutil.copy(preload_library.built(*flags), directory)
    return Bench(directory, None if sanitizer is None else _runtime(sanitizer))


def _build(directory: Path, flags: list[str]) -> None:
    shared = ["-shared", "-fPIC", "-fvisibility=hidden", *flags]
    driver = str(directory / "libcuda.so.1")
    here = "-Wl,-rpath,$ORIGIN"
    scenarios = sorted(path.name for path in HERE.glob("scenarios_*.c"))
    stub = sorted(path.name for path in HERE.glob("stub_*.c"))
    compile_c(directory / "libcuda.so.1", stub, *shared, "-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic")
    compile_c(directory / "program", ["program.c", "reach.c", *scenarios], *flags, here, driver)
    compile_c(directory / "plugin.so", ["plugin.c", "reach.c"], *shared, here, "-Wl,-z,relro,-z,now", driver)
    compile_c(directory / "lazy_plugin.so", ["plugin.c", "reach.c"], *shared, here, "-Wl,-z,lazy", driver)


def _runtime(sanitizer: str) -> str:
    name = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    asked = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, timeout=60, check=True)
    found = asked.stdout.strip()
    if not Path(found).is_absolute():
        pytest.skip(f"gcc has no {name}")
    return found
