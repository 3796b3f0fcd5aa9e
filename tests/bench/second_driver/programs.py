"""The programs that are idle or busy at the fault, and how those in CUDA C++ are built: with cuBLAS where it is."""

import importlib.util
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from shutil import which
from typing import Final

from tests.bench.core.bench import Bench
from tests.bench.core.errors import SuiteError
from tests.bench.core.programs import CUDA, compile_cuda
from tests.bench.isolation import preloaded

CPP, GRAPHS, TORCH = "CUDA C++ program", "CUDA C++ program with a graph", "PyTorch training"

_ROUNDS: Final = 1500
"""As without a word."""
_WITHOUT: Final = ("-DNO_BLAS",)
SIMULATED: Final = Path(__file__).with_name("simulated_idle.py")


@dataclass(frozen=True)
class Program:
    """One of them."""

    name: str
    command: tuple[str, ...]
    note: str = ""


class State(StrEnum):
    """What they do at the fault."""

    IDLE = "idle"
    BUSY = "busy"


def all_of_them(bench: Bench, state: State) -> tuple[list[Program], str]:
    """Build what must be built, the preload too; return the programs, and why there is one less than there could be."""
    if bench.programs.simulated:
        bench.say(f"{TORCH}: a simulated GPU has no libraries to run on it")
        return [Program(CPP, (sys.executable, str(SIMULATED), state.value))], ""
    with ThreadPoolExecutor(1) as compilers:
        preload = compilers.submit(preloaded.variables, bench)
        if state is State.IDLE:
            binary, note = _compiled(bench.root)
        else:
            binary, note = compile_cuda("second_busy", bench.root), ""
        preload.result()
    programs = [Program(CPP, (str(binary),), note)]
    if state is State.BUSY:
        programs.append(Program(GRAPHS, (str(binary), str(_ROUNDS), "graph")))
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        return programs, f"{sys.executable} has no {missing[0]}"
    return [*programs, Program(TORCH, (sys.executable, str(CUDA / "torch_idle.py"), state.value))], ""


def _compiled(directory: Path) -> tuple[Path, str]:
    """The program, and what is to be said of how it was built."""
    failure = ""
    for flags in [*cublas(toolkit(), wheels()), _WITHOUT]:
        try:
            binary = compile_cuda("second_idle", directory, flags)
        except SuiteError as error:
            failure = str(error)
        else:
            return binary, "" if flags != _WITHOUT else f"built without cuBLAS{f': {failure[:200]}' if failure else ''}"
    raise SuiteError(failure)


def cublas(toolkit: Path | None, wheels: tuple[Path, ...]) -> Iterator[tuple[str, ...]]:
    """The compiler's flags for each cuBLAS that is here."""
    return libraries("cublas", "cublas_v2.h", toolkit, wheels)


def libraries(name: str, header: str, toolkit: Path | None, wheels: tuple[Path, ...]) -> Iterator[tuple[str, ...]]:
    """The compiler's flags for each library of a name that is here: the CUDA toolkit's, and those of Python wheels."""
    if toolkit is not None and any(any(toolkit.glob(f"{lib}/lib{name}.so")) for lib in ("lib*", "targets/*/lib")):
        yield (f"-l{name}",)
    for found in [found for wheel in wheels for found in sorted(wheel.rglob(header))]:
        for library in sorted((found.parents[1] / "lib").glob(f"lib{name}.so*")):
            # By the linker: nvcc takes no file with a version behind its suffix.
            yield ("-I", str(found.parent), "-Xlinker", str(library), "-Xlinker", f"-rpath={library.parent}")


def toolkit() -> Path | None:
    """The directory of the CUDA toolkit; None without nvcc."""
    nvcc = which("nvcc")
    return Path(nvcc).resolve().parents[1] if nvcc is not None else None


def wheels() -> tuple[Path, ...]:
    """The directories with NVIDIA's Python wheels."""
    found = importlib.util.find_spec("nvidia")
    return tuple(map(Path, found.submodule_search_locations or ())) if found is not None else ()
