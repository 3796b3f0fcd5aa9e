"""The allocator that PyTorch is given, called as PyTorch calls it, against a model of what is taken."""

import ctypes
import random
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.preload import build
from tests.late import Late

library = Late("mpsguard.vault.client.torch_regions.library", "torch")
BASE = 0x2000_0000_0000


@pytest.fixture(scope="module")
def pool_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    target: Path = tmp_path_factory.mktemp("pool") / library.NAME
    build.compile_library(build.POOL, target)
    loaded: ctypes.CDLL = library.load(target)
    return loaded


@pytest.fixture
def pool(pool_library: ctypes.CDLL) -> Iterator[int]:
    number = pool_library.mpsguard_pool_open(BASE, 64 * library.UNIT, 0, None)
    assert number >= 0
    before = pool_library.mpsguard_pool_enter(number)
    yield number
    pool_library.mpsguard_pool_enter(before)


def units(size: int) -> int:
    return int(-(-size // library.UNIT))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_given_out_lies_apart_and_inside(pool_library: ctypes.CDLL, pool: int, seed: int) -> None:
    chance = random.Random(seed)
    live: dict[int, int] = {}
    refused = 0
    for _ in range(400):
        if live and chance.random() < 0.45:
            at = chance.choice(list(live))
            pool_library.mpsguard_pool_free(at, live.pop(at), 0, None)
        else:
            size = chance.randrange(1, 12 * library.UNIT)
            at = pool_library.mpsguard_pool_allocate(size, 0, None)
            busy = {
                unit
                for start, length in live.items()
                for unit in range(start // library.UNIT, start // library.UNIT + units(length))
            }
            if at is None:
                free = [unit not in busy for unit in range(BASE // library.UNIT, BASE // library.UNIT + 64)]
                runs = "".join("." if yes else "#" for yes in free).split("#")
                assert max(map(len, runs)) < units(size), "there was room"
                refused += 1
                continue
            assert at % library.UNIT == 0
            assert at >= BASE
            assert at + size <= BASE + 64 * library.UNIT
            assert not busy & set(range(at // library.UNIT, at // library.UNIT + units(size)))
            live[at] = size
        assert pool_library.mpsguard_pool_used(pool) == sum(units(size) for size in live.values()) * library.UNIT
    assert refused > 0
    assert pool_library.mpsguard_pool_close(pool) == (-1 if live else 0)
    for at, size in live.items():
        pool_library.mpsguard_pool_free(at, size, 0, None)
    if live:
        assert pool_library.mpsguard_pool_close(pool) == 0


def test_only_the_thread_that_entered_a_pool_gets_memory_of_it(pool_library: ctypes.CDLL, pool: int) -> None:
    other: list[int | None] = []
    thread = threading.Thread(target=lambda: other.append(pool_library.mpsguard_pool_allocate(1, 0, None)))
    thread.start()
    thread.join()
    assert other == [None]
    assert pool_library.mpsguard_pool_allocate(1, 1, None) is None, "of another device"
    assert pool_library.mpsguard_pool_allocate(1, 0, None) == BASE
    pool_library.mpsguard_pool_free(BASE, 1, 0, None)
    pool_library.mpsguard_pool_close(pool)


def test_freeing_waits_for_the_work_on_the_memory_and_only_then_frees(pool_library: ctypes.CDLL) -> None:
    used_when_asked: list[int] = []

    def synchronize() -> int:
        used_when_asked.append(pool_library.mpsguard_pool_used(number))
        return 0

    callback = ctypes.CFUNCTYPE(ctypes.c_int)(synchronize)
    number = pool_library.mpsguard_pool_open(BASE, 4 * library.UNIT, 0, ctypes.cast(callback, ctypes.c_void_p))
    before = pool_library.mpsguard_pool_enter(number)
    at = pool_library.mpsguard_pool_allocate(1, 0, None)
    pool_library.mpsguard_pool_enter(before)
    pool_library.mpsguard_pool_free(at + library.UNIT, 1, 0, None)
    pool_library.mpsguard_pool_free(at, 1, 0, None)
    assert used_when_asked == [library.UNIT, library.UNIT]
    assert pool_library.mpsguard_pool_close(number) == 0


def test_an_invalid_free_changes_nothing(pool_library: ctypes.CDLL, pool: int) -> None:
    at = pool_library.mpsguard_pool_allocate(2 * library.UNIT, 0, None)
    for wrong in (BASE - library.UNIT, BASE + 64 * library.UNIT, at + library.UNIT, at + 1, None):
        pool_library.mpsguard_pool_free(wrong, library.UNIT, 0, None)
    assert pool_library.mpsguard_pool_used(pool) == 2 * library.UNIT
    pool_library.mpsguard_pool_free(at, library.UNIT, 0, None)
    assert pool_library.mpsguard_pool_close(pool) == 0


def test_a_pool_needs_a_unit_and_a_place(pool_library: ctypes.CDLL) -> None:
    assert pool_library.mpsguard_pool_open(BASE, library.UNIT - 1, 0, None) == -1
    made = []
    while (number := pool_library.mpsguard_pool_open(BASE, library.UNIT, 0, None)) >= 0:
        made.append(number)
    assert len(made) == 64
    assert {pool_library.mpsguard_pool_close(number) for number in made} == {0}
    assert pool_library.mpsguard_pool_close(made[0]) == -1
    assert pool_library.mpsguard_pool_close(-1) == -1


def test_no_compiler_is_said() -> None:
    with pytest.raises(build.CompilerError, match="not installed"):
        build.compile_library(build.POOL, Path("unused.so"), compiler="no-such-compiler")
