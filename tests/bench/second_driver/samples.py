"""Console programs of NVIDIA's CUDA samples (github.com/NVIDIA/cuda-samples, 12.8 or later), and what they print.

They are not in this repository: the operator names a directory that has them.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree, which
from typing import Final

from tests.bench.core.batch import Command, End, Task
from tests.bench.core.programs import driver_library
from tests.bench.second_driver.programs import libraries, toolkit, wheels

DIRECTORY: Final = "CUDA_SAMPLES"
"""The variable with a directory of which `Samples` and `Common` are those of cuda-samples."""
COMPILE_WITHIN: Final = 150.0
RUN_WITHIN: Final = 60.0
_HEADERS: Final = {
    "cublas": "cublas_v2.h",
    "cufft": "cufft.h",
    "curand": "curand.h",
    "cusolver": "cusolverDn.h",
    "cusparse": "cusparse.h",
    "nvrtc": "nvrtc.h",
}
_OPENMP: Final = ("-Xcompiler", "-fopenmp")
_DEVICE_LINKED: Final = ("-rdc=true",)


@dataclass(frozen=True)
class Sample:
    """One of them; it needs no screen, no second GPU and no input, and takes seconds."""

    place: str
    """Its folder under `Samples`."""
    needed: tuple[str, ...] = ()
    """Libraries of the toolkit."""
    flags: tuple[str, ...] = ()
    loaded: str = ""
    """What its `*_kernel.cu` are compiled to, which it loads itself: fatbin, ptx, or source, which it compiles."""
    together: bool = True
    """Whether several runs of it may be under way at once."""
    quick: bool = False

    @property
    def name(self) -> str:
        """Its own name."""
        return self.place.rpartition("/")[2]


def _of(folder: str, *names: str, quick: str = "") -> Iterator[Sample]:
    return (Sample(f"{folder}/{name}", quick=name in quick.split()) for name in names)


_INTRODUCTION, _TECHNIQUES, _FEATURES, _LIBRARIES, _PERFORMANCE = (
    *("0_Introduction", "2_Concepts_and_Techniques", "3_CUDA_Features", "4_CUDA_Libraries", "6_Performance"),
)
# fmt: off
SAMPLES: Final = (
    *_of(
        _INTRODUCTION,
        "asyncAPI", "clock", "fp16ScalarProduct", "matrixMul", "mergeSort", "simpleAWBarrier", "simpleAtomicIntrinsics",
        "simpleAttributes", "simpleCallback", "simpleCooperativeGroups", "simpleCubemapTexture", "simpleHyperQ",
        "simpleLayeredTexture", "simpleMultiCopy", "simpleMultiGPU", "simpleOccupancy", "simplePitchLinearTexture",
        "simplePrintf", "simpleStreams", "simpleSurfaceWrite", "simpleTemplates", "simpleTexture",
        "simpleVoteIntrinsics", "simpleZeroCopy", "systemWideAtomics", "vectorAdd",
        quick="asyncAPI matrixMul simpleCallback simpleLayeredTexture simpleStreams simpleZeroCopy",
    ),
    Sample(f"{_INTRODUCTION}/UnifiedMemoryStreams", ("cublas",), flags=_OPENMP, quick=True),
    Sample(f"{_INTRODUCTION}/matrixMulDrv", loaded="fatbin"),
    Sample(f"{_INTRODUCTION}/simpleDrvRuntime", loaded="fatbin"),
    Sample(f"{_INTRODUCTION}/simpleIPC", together=False),
    Sample(f"{_INTRODUCTION}/simpleTextureDrv", loaded="fatbin"),
    Sample(f"{_INTRODUCTION}/vectorAddDrv", loaded="fatbin", quick=True),
    Sample(f"{_INTRODUCTION}/vectorAddMMAP", loaded="fatbin"),
    Sample(f"{_INTRODUCTION}/vectorAdd_nvrtc", ("nvrtc",), loaded="source"),
    *_of(
        _TECHNIQUES,
        "convolutionSeparable", "convolutionTexture", "histogram", "inlinePTX", "interval", "radixSortThrust",
        "reduction", "reductionMultiBlockCG", "scalarProd", "scan", "shfl_scan", "sortingNetworks",
        "streamOrderedAllocation", "threadFenceReduction",
        quick="reduction streamOrderedAllocation",
    ),
    Sample(f"{_TECHNIQUES}/MC_EstimatePiP", ("curand",)),
    Sample(f"{_TECHNIQUES}/MC_SingleAsianOptionP", ("curand",)),
    Sample(f"{_TECHNIQUES}/threadMigration", loaded="fatbin"),
    *_of(
        _FEATURES,
        "StreamPriorities", "bf16TensorCoreGemm", "binaryPartitionCG", "cudaCompressibleMemory", "cudaTensorCoreGemm",
        "globalToShmemAsyncCopy", "graphMemoryFootprint", "graphMemoryNodes", "immaTensorCoreGemm", "jacobiCudaGraphs",
        "newdelete", "simpleCudaGraphs", "warpAggregatedAtomicsCG",
        quick="graphMemoryNodes jacobiCudaGraphs newdelete simpleCudaGraphs",
    ),
    *(
        Sample(f"{_FEATURES}/{name}", flags=_DEVICE_LINKED, quick=name == "cdpSimpleQuicksort")
        for name in ("cdpQuadtree", "cdpSimplePrint", "cdpSimpleQuicksort", "graphConditionalNodes")
    ),
    Sample(f"{_FEATURES}/ptxjit", loaded="ptx"),
    *(
        Sample(f"{_LIBRARIES}/{name}", needed, quick=name in ("simpleCUBLAS", "simpleCUFFT"))
        for name, needed in {
            "MersenneTwisterGP11213": ("curand",),
            "batchCUBLAS": ("cublas",),
            "conjugateGradient": ("cublas", "cusparse"),
            "conjugateGradientCudaGraphs": ("cublas", "cusparse"),
            "conjugateGradientUM": ("cublas", "cusparse"),
            "cuSolverDn_LinearSolver": ("cublas", "cusolver", "cusparse"),
            "lineOfSight": (),
            "matrixMulCUBLAS": ("cublas",),
            "simpleCUBLAS": ("cublas",),
            "simpleCUFFT": ("cufft",),
        }.items()
    ),
    *_of(_PERFORMANCE, "LargeKernelParameter", "alignedTypes", "transpose"),
)
# fmt: on
"""Left out: those that stop a kernel by an assertion, that want a second GPU or a screen, or that take minutes."""


def directory() -> tuple[Path | None, str]:
    """The operator's directory, or None and why there is none."""
    named = os.environ.get(DIRECTORY)
    if not named:
        return None, f"{DIRECTORY} names no directory with NVIDIA's cuda-samples"
    found = Path(named).resolve()
    if not (found / "Samples").is_dir() or not (found / "Common").is_dir():
        return None, f"{DIRECTORY}={named}: no Samples and Common in it"
    if which("nvcc") is None:
        return None, "nvcc is not on PATH: the samples cannot be built"
    return found, ""


def compilation(sample: Sample, samples: Path, into: Path) -> Task | str:
    """The compilers of a sample, in a copy of its folder; or why it cannot be compiled.

    The copy is where it runs, too: samples look for their data there, and write there.
    """
    source, copy = samples / "Samples" / sample.place, into / sample.name
    if not source.is_dir():
        return "not in the directory"
    links: list[str] = []
    for name in sample.needed:
        way = next(libraries(name, _HEADERS[name], toolkit(), wheels()), None)
        if way is None:
            return f"no lib{name} and {_HEADERS[name]} here"
        links += way
    copytree(source, copy)
    nvcc = which("nvcc") or "nvcc"
    files = sorted(
        file for suffix in ("cu", "cpp", "c") for file in [*copy.glob(f"*.{suffix}"), *copy.glob(f"src/*.{suffix}")]
    )
    kernels = [file for file in files if sample.loaded and file.stem.endswith("_kernel")]
    includes = [word for each in (samples / "Common", copy, copy / "inc") for word in ("-I", str(each))]
    common = [nvcc, "-std=c++17", "-O2", "-w", "--extended-lambda", *includes]
    program = [*common, "-arch=native", *sample.flags, "-o", str(copy / sample.name)]
    program += [str(file) for file in files if file not in kernels]
    program += [*links, *driver_library(nvcc)]
    made = [program]
    if sample.loaded != "source":
        # The names under which the samples look for them.
        outputs = [(file, copy / f"{file.stem}64.{sample.loaded}") for file in kernels]
        made += [[*common, "-arch=native", f"-{sample.loaded}", "-o", str(to), str(file)] for file, to in outputs]
    return Task(sample.name, tuple(Command(tuple(words), os.environ, copy) for words in made), COMPILE_WITHIN)


def why_not_compiled(ends: Sequence[End]) -> str:
    """The first error of the first compiler that failed; empty if none did."""
    failed = next((end for end in ends if end.status != 0), None)
    if failed is None:
        return ""
    if failed.late:
        return f"not compiled within {COMPILE_WITHIN:g} s"
    lines = [line.strip() for line in failed.text.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\berror\b|undefined reference|cannot find", line)]
    return (errors or lines[-1:] or [f"status {failed.status}"])[0][-200:]


_TIMED: Final = re.compile(
    r"\b(time[ds]?|timer|timing|took|elapsed|speed-?up|speed|throughput|bandwidth|perf\w*|rate|clocks?|cycles"
    r"|latency|overhead|[mun]?secs?|ms|us|seconds?|milliseconds|[kmgt]?flops?(/s)?|fps)\b|/ ?s(ec\w*)?\b",
    re.IGNORECASE,
)
_NUMBER: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_UNIT: Final = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)? ?(?=(ms|us|ns|s|sec|[KMGT]i?B/s)\b)", re.IGNORECASE)
_ADDRESS: Final = re.compile(r"\b0x[0-9a-f]{8,16}\b", re.IGNORECASE)


def comparable(text: str) -> str:
    """What a sample printed, without what differs from run to run by its nature.

    The rule: in a line with a word of time or rate (time, elapsed, bandwidth, GFlop/s, cycles, ...), or with a number
    right before a unit of one (1.5ms, 20 GB/s), each number is replaced by ``#``. Elsewhere addresses (0x and at least
    eight digits) are, and nothing else. Blanks are one blank, as numbers in columns move what is beside them.
    """
    lines = []
    for line in text.splitlines():
        kept = _ADDRESS.sub("#", line)
        if _TIMED.search(kept) or _UNIT.search(kept):
            kept = _NUMBER.sub("#", kept)
        lines.append(" ".join(kept.split()))
    return "\n".join(lines)


def difference(one: str, other: str) -> str:
    """The first line in which two texts differ, as both have it."""
    ours, theirs = one.splitlines(), other.splitlines()
    for number in range(max(len(ours), len(theirs))):
        pair = [lines[number] if number < len(lines) else "(no line)" for lines in (ours, theirs)]
        if pair[0] != pair[1]:
            return f"{pair[0][:80]!r}, {pair[1][:80]!r}"
    return ""
