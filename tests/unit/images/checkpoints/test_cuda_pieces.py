"""What the digests on a GPU are asked of the driver: a simulated driver executes it in host memory.

The kernels themselves are in `test_piece_digest`; here is what they are launched with.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from blake3 import blake3

from mpsguard.images.checkpoints.cuda_pieces import CudaPieces, CudaSource, CudaSpare
from mpsguard.images.checkpoints.piece_table import DIGEST
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan
from mpsguard.vault.client.cuda.driver import CudaBackend
from mpsguard.vault.client.mapped import HostBackend
from tests.harness.open_descriptors import open_descriptors, opened_since

TREES = 8
COUNT = 5


class SimulatedDriver:
    """Memory of the GPU is host memory; what is launched is done at once."""

    gpu = "simulated"

    def __init__(self) -> None:
        self.allocated: dict[int, Any] = {}
        self.entered_times = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.entered_times += 1
        yield

    def call(self, name: str, *arguments: Any) -> Any:
        match name:
            case "cuModuleGetFunction":
                return arguments[1]
            case "cuMemAlloc" | "cuMemHostAlloc":
                memory = ctypes.create_string_buffer(arguments[0])
                self.allocated[ctypes.addressof(memory)] = memory
                return ctypes.addressof(memory)
            case "cuMemFree" | "cuMemFreeHost":
                del self.allocated[arguments[0]]
            case "cuMemcpyHtoD" | "cuMemcpyHtoDAsync":
                ctypes.memmove(*arguments[:3])
            case "cuLaunchKernel":
                self._launch(arguments[0], arguments[1], arguments[-2])
        return name

    def _launch(self, kernel: bytes, blocks: int, place: int) -> None:
        pointers = (ctypes.c_void_p * 3).from_address(place)
        first, second = (ctypes.c_uint64.from_address(pointers[at] or 0).value for at in range(2))
        if kernel == b"mpsguard_tree_values":
            trees = ctypes.c_uint64.from_address(pointers[2] or 0).value
            for at in range(blocks // TREES):
                number = ctypes.c_uint32.from_address(second + 4 * at).value
                digest = blake3(ctypes.string_at(first + number * PIECE, PIECE)).digest()
                ctypes.memmove(trees + at * TREES * DIGEST, digest, DIGEST)
        else:
            for at in range(ctypes.c_uint32.from_address(pointers[2] or 0).value):
                ctypes.memmove(second + at * DIGEST, first + at * TREES * DIGEST, DIGEST)


@pytest.fixture
def memory() -> ctypes.Array[ctypes.c_char]:
    return ctypes.create_string_buffer(os.urandom(COUNT * PIECE), COUNT * PIECE)


def digests(memory: ctypes.Array[ctypes.c_char]) -> list[bytes]:
    return [blake3(memory.raw[at : at + PIECE]).digest() for at in range(0, COUNT * PIECE, PIECE)]


@pytest.mark.parametrize("indices", [range(COUNT), range(2, 4), range(1), [4, 0, 2], [3]])
def test_digests_are_those_of_the_pieces_that_are_asked_for(
    memory: ctypes.Array[ctypes.c_char], indices: range | list[int]
) -> None:
    driver = SimulatedDriver()
    pieces = CudaPieces(cast("CudaBackend", driver))
    expected = digests(memory)
    # The second time, the memory for it is there.
    for _ in range(2):
        found = bytearray(len(indices) * DIGEST)
        pieces.digest(ctypes.addressof(memory), indices, memoryview(found))
        assert found == b"".join(expected[index] for index in indices)
    pieces.close()
    assert driver.allocated == {}


def test_a_region_has_its_digests_at_its_pieces_numbers(memory: ctypes.Array[ctypes.c_char]) -> None:
    driver = SimulatedDriver()
    pieces = CudaPieces(cast("CudaBackend", driver))
    source = CudaSource(pieces, ctypes.addressof(memory), COUNT * PIECE)
    span = RegionSpan("a", COUNT * PIECE, 7)
    found = bytearray(COUNT * DIGEST)
    allocated = set(driver.allocated)
    source.digest(span, range(8, 10), memoryview(found))
    source.digest(span, range(11, 12), memoryview(found))
    expected = digests(memory)
    assert [found[at : at + DIGEST] for at in range(0, len(found), DIGEST)] == [
        bytes(DIGEST),
        *expected[1:3],
        bytes(DIGEST),
        expected[4],
    ]
    # A cut allocates nothing, and enters the context once.
    assert set(driver.allocated) == allocated
    driver.entered_times = 0
    source.digest(span, range(7, 12), memoryview(found))
    assert driver.entered_times == 1
    pieces.close()
    assert driver.allocated == {}


@pytest.mark.parametrize("failing", ["export", "reserve", "map", "allow"])
def test_nothing_is_left_of_spare_memory_that_cannot_be_mapped(failing: str) -> None:
    class Failing(HostBackend):
        """Host memory stands for the GPU's."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(failing)

    setattr(Failing, failing, fail)
    before, mapped = open_descriptors(), mappings()
    for _ in range(2):
        with pytest.raises(OSError, match=failing):
            CudaSpare(cast("CudaBackend", Failing()), 3)
    assert (opened_since(before), mappings()) == ([], mapped)


def mappings() -> int:
    """How many there are of reserved addresses or regions."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sum(line[1] == "---p" or "/memfd:mpsguard-region" in line[-1] for line in lines)
