"""What the tests over the simulated stack share."""

import shutil
import subprocess
from pathlib import Path

import pytest

STAND_IN = Path(__file__).parent / "stand_in" / "libcuda.c"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the stand-in."""
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler: the stand-in for libcuda cannot be built")
    directory = tmp_path_factory.mktemp("stand-in")
    directory.chmod(0o755)
    subprocess.run(
        [
            compiler,
            "-shared",
            "-fPIC",
            "-Wall",
            "-Werror",
            "-o",
            str(directory / "libcuda.so.1"),
            str(STAND_IN),
            "-ldl",
        ],
        check=True,
    )
    return directory
