"""NVIDIA's own runtime library, shared and linked in, finds the hooks."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from mpsguard.preload.library import PreloadSettings
from tests.integration.preload import bench
from tests.integration.preload.bench import SECONDS, Bench


def toolkit() -> Path:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("nvcc is not installed: there is no runtime library to try")
    # /usr/local/bin/nvcc may be a script that starts the toolkit's own.
    asked = subprocess.run([nvcc, "--dryrun", "x.cu"], capture_output=True, text=True, timeout=60, check=False)
    (top,) = [line.partition("=")[2] for line in asked.stderr.splitlines() if line.startswith("#$ TOP=")] or [""]
    found = Path(top).resolve() / "lib64"
    if not (found / "libcudart_static.a").exists():
        pytest.skip(f"no runtime library in {found}")
    return found


@pytest.mark.parametrize(("linked", "holder"), [("shared", "libcudart"), ("static", "runtime_lookup")])
def test_it_holds_hooks_and_nothing_of_the_driver(plain: Bench, linked: str, holder: str) -> None:
    libraries = toolkit()
    program = plain.directory / f"runtime_lookup_{linked}"
    how = [str(libraries / "libcudart_static.a"), "-lrt"]
    if linked == "shared":
        how = [f"-L{libraries}", "-lcudart", f"-Wl,-rpath,{libraries}"]
    bench.compile_c(program, ["runtime_lookup.c"], *how)

    def held(settings: PreloadSettings | None) -> list[str]:
        done = subprocess.run(
            [str(program), holder],
            env=plain.environment(settings),
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.splitlines()

    without, with_hooks = held(None), held(PreloadSettings())
    assert len(with_hooks) == 7
    for line in with_hooks:
        assert " hooks=0" not in line
        assert line.endswith(" driver=0")
    # And without the preload it is the driver's own that it finds: the search can fail.
    for line in without:
        assert not line.endswith(" driver=0")
