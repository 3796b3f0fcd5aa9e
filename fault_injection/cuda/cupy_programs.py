"""Programs of CuPy, to be run unchanged under the preload: `cupy_programs.py PROGRAM`, one of `PROGRAMS`.

Each does a fixed piece of work from fixed seeds, so that two runs can be compared bit by bit; what CuPy adds up by
atomics is added up in whole numbers. Events and exit status are those of `torch_programs.py`, as are the options, of
which only `--device` means something here. It runs under the interpreter that holds CuPy, so it imports nothing of
this project.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

FAILED = 4
_REPLAYS = 10
_MODULE = r"""
extern "C" {
__constant__ float weights[4];
__device__ int calls;

__global__ void weigh(const float *in, float *out, int length) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i == 0) ++calls;
    if (i < length) out[i] = in[i] * weights[i % 4];
}

__global__ void reverse(const float *in, float *out, int length) {
    extern __shared__ float tile[];
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < length ? in[i] : 0.0f;
    __syncthreads();
    const int from = blockDim.x - 1 - threadIdx.x;
    if (i < length) out[i] = tile[from];
}
}
template <typename T> __global__ void doubled(T *values, int length) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < length) values[i] *= 2;
}
"""


def emit(event: str, **members: object) -> None:
    """Print one event at once."""
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


def digest(cupy: Any, arrays: Iterable[Any]) -> str:
    """Of every bit of them."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(cupy.asnumpy(cupy.ascontiguousarray(array)).tobytes())
    return found.hexdigest()


def arrays(cupy: Any) -> Iterator[Any]:
    """Element by element, reductions, sorts, choices, seeded random numbers."""
    random = cupy.random.default_rng(2026)
    left, right = random.standard_normal((1024, 1024)), random.random((1024, 1024))
    yield cupy.exp(-left * left) + cupy.sqrt(right) * cupy.sin(left) / (1 + right)
    yield cupy.where(left > right, left, -right)
    for kind in ("float32", "float16", "int32"):
        yield (left * 100).astype(kind).sum(axis=0)
    yield from (left.sum(), left.mean(axis=1), left.std(axis=0), right.max(), right.argmin(axis=1), right.prod(axis=1))
    yield from (cupy.cumsum(right, axis=1), cupy.sort(left, axis=1), cupy.argsort(right.ravel()))
    yield from (cupy.partition(left.ravel(), 4096)[:4096].sum(), cupy.median(left, axis=0))
    whole = (right.ravel() * 1000).astype(cupy.int64)
    yield from (cupy.bincount(whole), cupy.unique(whole), left[left > 2.5], left[::7, ::-3], cupy.roll(left, 5, axis=1))
    yield from (cupy.concatenate([left, right]), cupy.take(left, whole[:1000] % 1024, axis=0), left.T.copy())
    seeded = cupy.random.RandomState(2026)
    yield from (seeded.uniform(size=100_000), seeded.normal(size=100_000), seeded.permutation(10_000))


def kernels(cupy: Any) -> Iterator[Any]:
    """Kernels of the program's own: compiled from source, with a constant, a variable, shared memory, a template."""
    length = (1 << 20) + 7
    values = cupy.arange(length, dtype=cupy.float32)
    squares = cupy.ElementwiseKernel("T x, T y", "T z", "z = x * x - y", "squares")
    yield squares(values, values + 1)
    norm = cupy.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "norm")
    yield norm(values[:700_000].reshape(7, -1), axis=1)
    yield cupy.fuse(kernel_name="mixed")(lambda x, y: x * y + cupy.tanh(x))(values / length, values)
    module = cupy.RawModule(code=_MODULE, options=("-std=c++17",), name_expressions=("doubled<float>", "doubled<int>"))
    for name, kind in (("doubled<float>", cupy.float32), ("doubled<int>", cupy.int32)):
        doubled = cupy.arange(length, dtype=kind)
        module.get_function(name)((length // 256 + 1,), (256,), (doubled, cupy.int32(length)))
        yield doubled
    plain = cupy.RawModule(code=_MODULE.partition("template")[0])
    weights = cupy.ndarray(4, cupy.float32, plain.get_global("weights"))
    weights[...] = cupy.asarray([0.5, 1.5, -2.0, 3.0], dtype=cupy.float32)
    out = cupy.empty_like(values)
    for _ in range(20):
        plain.get_function("weigh")((length // 256 + 1,), (256,), (values, out, cupy.int32(length)))
    yield out.copy()
    yield cupy.ndarray(1, cupy.int32, plain.get_global("calls"))
    reverse = plain.get_function("reverse")
    reverse.max_dynamic_shared_size_bytes = 64 << 10
    reverse((length // 512 + 1,), (512,), (values, out, cupy.int32(length)), shared_mem=64 << 10)
    yield out
    text = 'extern "C" __global__ void add(float *x, float y) { x[threadIdx.x] += y; }'
    add = cupy.RawKernel(text, "add")
    few = cupy.zeros(128, dtype=cupy.float32)
    for step in range(1000):
        add((1,), (128,), (few, cupy.float32(step)))
    yield few


def libraries(cupy: Any) -> Iterator[Any]:
    """Transforms by cuFFT, products by cuBLAS, factors by cuSOLVER."""
    random = cupy.random.default_rng(2026)
    square = random.standard_normal((512, 512))
    for kind in (cupy.float32, cupy.float64, cupy.float16):
        yield square.astype(kind) @ square.T.astype(kind)
    batch = random.standard_normal((32, 64, 64))
    yield from (cupy.matmul(batch, batch), cupy.einsum("bij,bkj->bik", batch, batch), square @ square[0])
    yield cupy.tensordot(batch, batch, axes=([1, 2], [1, 2]))
    signal = random.standard_normal((256, 1000)) + 1j * random.standard_normal((256, 1000))
    yield from (cupy.fft.fft(signal), cupy.fft.ifft2(signal), cupy.fft.rfft(square, axis=1), cupy.fft.fftn(batch))
    symmetric = square @ square.T + 512 * cupy.eye(512)
    yield from (cupy.linalg.cholesky(symmetric), cupy.linalg.inv(symmetric), cupy.linalg.solve(square, square[0]))
    yield from (*cupy.linalg.qr(square), *cupy.linalg.svd(square[:128, :128]), *cupy.linalg.eigh(symmetric))
    yield cupy.linalg.det(symmetric / 512)


def sparse(cupy: Any) -> Iterator[Any]:
    """Sparse products by cuSPARSE, of whole numbers."""
    matrices = importlib.import_module("cupyx.scipy.sparse")
    whole = cupy.rint(cupy.random.default_rng(2026).standard_normal((512, 512)) * 4)
    thin = matrices.csr_matrix(cupy.where(cupy.abs(whole) > 8, whole, 0))
    yield from (thin @ whole[0], thin @ whole, (thin @ thin).toarray(), thin.T.tocsr().data)


def streams(cupy: Any) -> Iterator[Any]:
    """Several streams and events, memory pools, pinned memory with asynchronous copies, and a captured graph."""
    numpy, cupyx, cuda = importlib.import_module("numpy"), importlib.import_module("cupyx"), cupy.cuda
    pinned = cupyx.empty_pinned((1 << 20,), dtype=numpy.float32)
    pinned[...] = numpy.arange(1 << 20, dtype=numpy.float32)
    aside, ready = [cuda.Stream(non_blocking=True) for _ in range(4)], [cuda.Event() for _ in range(4)]
    handed = cupy.zeros(1 << 20, dtype=cupy.float32)
    cuda.Device().synchronize()
    for step in range(40):
        stream, before = aside[step % 4], ready[(step - 1) % 4]
        if step:
            stream.wait_event(before)
        with stream:
            came = cupy.empty(1 << 20, dtype=cupy.float32)
            came.set(pinned, stream=stream)
            handed += came * (step + 1)
            ready[step % 4].record(stream)
    aside[39 % 4].synchronize()
    yield handed
    back = cupyx.empty_pinned((1 << 20,), dtype=numpy.float32)
    with aside[0]:
        handed.get(stream=aside[0], out=back, blocking=False)
    aside[0].synchronize()
    yield cupy.asarray(back)
    with cuda.using_allocator(cuda.MemoryPool().malloc):
        made = [cupy.full((size, 257), size, dtype=cupy.float64) for size in range(1, 400, 13)]
        yield cupy.stack([each.sum() for each in made])
        del made
    cupy.get_default_memory_pool().free_all_blocks()
    cupy.get_default_pinned_memory_pool().free_all_blocks()
    values, out = cupy.arange(1 << 16, dtype=cupy.float32), cupy.zeros(1 << 16, dtype=cupy.float32)
    # Compiled before the capture, in which nothing may be loaded.
    cupy.add(out, values, out=out)
    cupy.multiply(out, cupy.float32(0.5), out=out)
    cuda.Device().synchronize()
    with aside[1] as stream:
        stream.begin_capture()
        cupy.add(out, values, out=out)
        cupy.multiply(out, cupy.float32(0.5), out=out)
        graph = stream.end_capture()
        for _ in range(_REPLAYS):
            graph.launch(stream)
        stream.synchronize()
    yield out


def ordered(cupy: Any) -> Iterator[Any]:
    """Arrays of changing size by `cudaMallocAsync`, freed in the order of a stream."""
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            total = cupy.zeros(4096, dtype=cupy.float64)
            for step in range(60):
                piece = cupy.arange(4096 * (1 + step % 5), dtype=cupy.float64).reshape(-1, 4096)
                total += (piece * step).sum(axis=0)
            stream.synchronize()
            result = cupy.asnumpy(total)
        del total, piece
    yield cupy.asarray(result)


def managed(cupy: Any) -> Iterator[Any]:
    """Arrays in managed memory."""
    with cupy.cuda.using_allocator(cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc):
        values = cupy.arange(1 << 20, dtype=cupy.float32)
        for step in range(20):
            values = values * cupy.float32(0.75) + step
        result = cupy.asnumpy(values)
        del values
    yield cupy.asarray(result)


PROGRAMS: dict[str, Callable[[Any], Iterator[Any]]] = {
    "arrays": arrays,
    "kernels": kernels,
    "libraries": libraries,
    "sparse": sparse,
    "streams": streams,
    "ordered": ordered,
    "managed": managed,
}


def main() -> int:
    """Run one."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("program", choices=tuple(PROGRAMS))
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--meeting", default="")
    parser.add_argument("--device", type=int, default=0)
    options = parser.parse_args()
    emit("start")
    cupy = importlib.import_module("cupy")
    try:
        cupy.cuda.Device(options.device).use()
        found = digest(cupy, PROGRAMS[options.program](cupy))
        cupy.cuda.Device().synchronize()
    except Exception as error:  # of CuPy, its compilers and its libraries, which have no base of their own
        said = str(error).strip().splitlines() or [type(error).__name__]
        emit("failed", code=-1, name=f"{type(error).__name__}: {said[0]}", call="cupy")
        return FAILED
    emit("result", digest=found)
    emit("finished")
    return 0


if __name__ == "__main__":
    # Straight out when something failed: CuPy's own teardown would make CUDA calls that may never return.
    status = main()
    if status:
        os._exit(status)
    sys.exit(status)
