"""The GPU tier and the pinned tier of a real pool. Host memory stands for the GPU's: this is a simulation of CUDA."""

import ctypes
import gc
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from mpsguard.images.on_demand import ArrivalError, save_profile
from mpsguard.images.pool import device_image
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.device_image import DeviceImage, GpuTiers, copy_to_gpu, hold_on_gpu, pinned
from mpsguard.images.pool.device_on_demand import open_on_gpu
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_addresses import ImageAddresses
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.pinned_arena import PinnedArena
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.image import Image
from mpsguard.images.store.pieces import PIECE_SIZE
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.mapped.host import HostBackend
from tests.harness.waiting import PATIENCE
from tests.integration.pool.running import MIB, RunningPool, running
from tests.unit.images.store.samples import some_bytes

MEMORY = ("--host-memory", "16M", "--pinned-memory", "17M", "--gpu-memory", "16M")
"""Eight slots are pinned."""


@pytest.fixture(autouse=True, params=[None, 2 * MIB], ids=["one", "two"])
def allocations(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image is one allocation, or two as a large one is."""
    if request.param is not None:
        monkeypatch.setattr(device_image, "FIRST", request.param)


class CountingBackend(HostBackend):
    """Host memory in the place of a GPU's, with what a program did."""

    def __init__(self) -> None:
        super().__init__()
        self.copied = 0
        self.broken = False
        self.locked: dict[int, int] = {}

    def pin(self, address: int, size: int) -> bool:
        """See `CopyingBackend.pin`."""
        self.locked[address] = size
        return True

    def unpin(self, address: int) -> None:
        """See `CopyingBackend.unpin`."""
        del self.locked[address]

    def begin_copy(self, va: int, address: int, size: int) -> None:
        """See `CopyingBackend.begin_copy`."""
        if self.broken:
            raise OSError("the copy failed")
        self.copied += size
        super().begin_copy(va, address, size)


class Program:
    """One program's connection and memory."""

    def __init__(self, pool: RunningPool, stack: ExitStack) -> None:
        self.store = stack.enter_context(ImageStore(pool.store))
        self.backend = CountingBackend()
        self.pool: PoolConnection = stack.enter_context(pool.connect())
        arena = stack.enter_context(PinnedArena(self.pool, self.backend))
        self.tiers = GpuTiers(self.pool, self.store, arena, self.backend)
        self._stack = stack

    def image(self, name: str) -> Image:
        return self._stack.enter_context(self.store.open(name))

    def hold(self, name: str, addresses: ImageAddresses | None = None) -> DeviceImage:
        return hold_on_gpu(self.tiers, self.image(name), addresses=addresses, within=PATIENCE)

    def copy(self, name: str, addresses: ImageAddresses | None = None) -> DeviceImage:
        return copy_to_gpu(self.tiers, self.image(name), addresses=addresses, within=PATIENCE)


@contextmanager
def program(pool: RunningPool) -> Iterator[Program]:
    with ExitStack() as stack:
        made = Program(pool, stack)
        yield made
    assert made.backend.locked == {}


def region(image: DeviceImage, name: str) -> bytes:
    place = image.places[name]
    return bytes(np.asarray(image)[place.offset : place.offset + place.size])


def test_programs_map_what_the_first_one_has_copied(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as first, program(pool) as second:
        pool.make("a", 5 * MIB + 3, 100)
        assert list(first.backend.locked.values()) == [16 * MIB]
        with first.hold("a") as mine, second.hold("a") as theirs:
            for held in (mine, theirs):
                assert region(held, "r0") == some_bytes(("a", 0), 5 * MIB + 3)
                assert region(held, "r1") == some_bytes(("a", 1), 100)
            assert (first.backend.copied, second.backend.copied) == (8 * MIB, 0)
            uses = {each.tier: each.uses for each in pool.listed()}
            assert uses == {Tier.GPU: 2, Tier.PINNED: 0}
        assert {each.uses for each in pool.listed()} == {0}


def test_what_a_tier_has_is_held_without_a_look_at_the_disk(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        pool.make("a", 3 * MIB)
        before = mine.image("a")
        with pinned(mine.tiers, before):
            pass
        shutil.rmtree(pool.store)
        with copy_to_gpu(mine.tiers, before, within=PATIENCE) as copied:
            assert region(copied, "r0") == some_bytes(("a", 0), 3 * MIB)
        with hold_on_gpu(mine.tiers, before, within=PATIENCE) as held:
            assert region(held, "r0") == some_bytes(("a", 0), 3 * MIB)
        assert {each.key for each in pool.listed()} == {key_of(before.manifest)}


def test_a_copy_is_the_programs_own(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        pool.make("a", 3 * MIB)
        with mine.copy("a") as one, mine.copy("a") as other:
            np.asarray(one)[:4] = 7
            assert region(other, "r0") == some_bytes(("a", 0), 3 * MIB)
        assert [(each.tier, each.uses) for each in pool.listed()] == [(Tier.PINNED, 0)]


def test_slots_are_used_again_in_pieces_and_zeros_are_written(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine, ExitStack() as held:
        for name in "abcd":
            pool.make(name, 4 * MIB)
        pool.make("large", 8 * MIB)
        zeros = pool.make("zeros", regions={"r0": bytes(2 * MIB)})
        assert zeros.regions[0].pieces == (None,)
        for name in "abcd":
            mine.copy(name).close()
        # b and d stay; the large one gets the slots of a and c.
        for name in "bd":
            held.enter_context(pinned(mine.tiers, mine.image(name)))
        runs = mine.pool.hold_pinned(mine.store, mine.image("large"))
        assert sorted((run.first, run.count) for run in runs) == [(0, 2), (4, 2)]
        mine.pool.release(Tier.PINNED, key_of(mine.image("large").manifest))
        with mine.copy("large") as large:
            assert region(large, "r0") == some_bytes(("large", 0), 8 * MIB)
        with mine.copy("zeros") as found:
            assert region(found, "r0") == bytes(2 * MIB)
        pool.make("larger", 18 * MIB)
        with pytest.raises(PoolError, match="the budget of all images"):
            mine.copy("larger")


class GatedBackend(CountingBackend):
    """Copies when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def begin_copy(self, va: int, address: int, size: int) -> None:
        """See `CopyingBackend.begin_copy`."""
        assert self.gate.wait(PATIENCE)
        super().begin_copy(va, address, size)


def test_what_was_copied_after_the_connection_had_ended_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine, program(pool) as other:
        pool.make("a", 16 * MIB)
        pool.make("b", 16 * MIB)
        backend = GatedBackend()
        tiers = mine.tiers._replace(backend=backend)
        with open_on_gpu(tiers, mine.image("a")) as (_, arriving):
            try:
                # As a request does that was broken off; then another image comes into the slots.
                mine.pool.close()
                other.copy("b").close()
            finally:
                backend.gate.set()
            with pytest.raises(ArrivalError, match="has ended"):
                arriving.regions["r0"].ready(within=PATIENCE)


class SmallBackend(CountingBackend):
    """Has memory for one allocation of an image."""

    def make(self, size: int) -> int:
        """See `Backend.make`."""
        if getattr(self, "made", False):
            raise OSError("out of memory")
        self.made = True
        return super().make(size)


@pytest.mark.parametrize("opens", [open_on_gpu, copy_to_gpu, hold_on_gpu])
def test_without_memory_for_all_of_an_image_nothing_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[..., AbstractContextManager[object]]
) -> None:
    monkeypatch.setattr(device_image, "FIRST", 2 * MIB)
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine, program(pool) as other:
        pool.make("a", 12 * MIB)
        tiers = mine.tiers._replace(backend=SmallBackend())
        before = reserved()
        with pytest.raises(OSError, match="out of memory"), opens(tiers, mine.image("a")):
            pass
        assert reserved() <= before
        assert {each.uses for each in pool.listed()} == {0}
        assert not [thread for thread in threading.enumerate() if thread.name == "on-demand"]
        with other.hold("a") as held:
            assert region(held, "r0") == some_bytes(("a", 0), 12 * MIB)


def reserved() -> set[tuple[int, int]]:
    """Mappings of this process that are an image's, or of addresses that are reserved for one.

    A thread's stack has a page that is reserved, and its heap ends at a multiple of 64 MiB (glibc, malloc/arena.c).
    """
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, protection, *_ = line.split()
        start, end = (int(each, 16) for each in ends.split("-"))
        of_image = protection == "---p" and end - start >= 2 * MIB and end % (64 * MIB)
        if of_image or "/memfd:mpsguard-region" in line:
            found.add((start, end))
    return found


def test_an_arena_that_is_not_closed_stays_where_it_is_pinned(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, pool.connect() as mine:
        backend = CountingBackend()
        arena = PinnedArena(mine, backend)
        size = arena.size
        (address,) = backend.locked
        del arena
        gc.collect()
        assert protection(address) == "r--s"
        ctypes.CDLL(None).munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))


def test_an_image_that_came_as_one_descriptor_is_mapped_as_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As earlier versions made it of any size."""
    with running(tmp_path, *MEMORY) as pool, program(pool) as earlier, program(pool) as mine:
        pool.make("a", 12 * MIB)
        monkeypatch.setattr(device_image, "FIRST", 1 << 40)
        with earlier.hold("a"):
            pass
        monkeypatch.setattr(device_image, "FIRST", 2 * MIB)
        with mine.hold("a") as held:
            assert region(held, "r0") == some_bytes(("a", 0), 12 * MIB)
        assert mine.backend.copied == 0


def test_a_reader_that_cannot_be_started_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_image, "FIRST", 2 * MIB)
    start, started = threading.Thread.start, list[threading.Thread]()

    def once(thread: threading.Thread) -> None:
        if thread.name == "on-demand" and started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        pool.make("a", 12 * MIB)
        image = mine.image("a")
        monkeypatch.setattr(threading.Thread, "start", once)
        with pytest.raises(RuntimeError, match="can't start"), open_on_gpu(mine.tiers, image):
            pass
        monkeypatch.undo()
        assert [each for each in started if each.is_alive()] == []


def test_no_program_writes_to_the_arena(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, pool.connect() as mine:
        fd, _ = mine.open_arena()
        try:
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            try:
                with pytest.raises(PermissionError):
                    os.pwrite(again, b"x", 0)
            finally:
                os.close(again)
        finally:
            os.close(fd)


def test_a_damaged_image_is_refused_and_takes_no_room(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        pool.make("a", 6 * MIB)
        piece = max((path for path in pool.store.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        content = piece.read_bytes()
        piece.chmod(0o600)
        piece.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        with pytest.raises(PoolError, match="damaged"):
            mine.hold("a")
        assert pool.listed() == []
        pool.make("whole", 16 * MIB)
        with mine.hold("whole") as held:
            assert region(held, "r0") == some_bytes(("whole", 0), 16 * MIB)


def test_a_program_that_fills_and_fails_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine, program(pool) as other:
        pool.make("a", 3 * MIB)
        mine.backend.broken = True
        with pytest.raises(OSError, match="the copy failed"):
            mine.hold("a")
        with other.hold("a") as held:
            assert region(held, "r0") == some_bytes(("a", 0), 3 * MIB)
        assert {(each.tier, each.uses) for each in pool.listed()} == {(Tier.GPU, 0), (Tier.PINNED, 0)}


def test_an_image_arrives_in_the_order_of_its_profile(tmp_path: Path) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        pool.make("a", 7 * MIB, 6 * MIB)
        image = mine.image("a")
        for _ in range(2):
            with open_on_gpu(mine.tiers, image) as (memory, arriving):
                arriving.regions["r1"].ready(5 * MIB, 1)
                at = memory.places["r1"].offset + 5 * MIB
                assert bytes(np.asarray(memory)[at : at + 1]) == some_bytes(("a", 1), 6 * MIB)[5 * MIB : 5 * MIB + 1]
                arriving.ready()
                assert region(memory, "r0") == some_bytes(("a", 0), 7 * MIB)
                assert region(memory, "r1") == some_bytes(("a", 1), 6 * MIB)
                profile = arriving.profile()
                assert profile.pieces == (("r1", 5 * MIB // PIECE_SIZE),)
                save_profile(mine.store, "a", profile)


def protection(va: int) -> str:
    """What /proc says of the mapping at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, found = line.split()[:2]
        first, end = (int(each, 16) for each in addresses.split("-"))
        if first <= va < end:
            return found
    return "nothing"


@pytest.mark.parametrize("cleared", [False, True])
def test_tensors_at_addresses_prepared_before_have_the_image_then(tmp_path: Path, *, cleared: bool) -> None:
    with running(tmp_path, *MEMORY) as pool, program(pool) as mine:
        for name in "ab":
            pool.make(name, 7 * MIB, 5)
        pool.make("small", 3 * MIB)
        with ImageAddresses(mine.backend, mine.image("a").manifest, repeated=3 * MIB) as addresses:
            before = np.asarray(addresses)
            assert not before.any()
            before[0] = 9  # of the memory that repeats: of every third MiB, and of no image
            assert before[3 * MIB] == 9
            if cleared:
                addresses.clear()
                assert protection(addresses.va) == "---p"
                addresses.clear()
            for name in "aba":
                with mine.hold(name, addresses) as held:
                    assert held.va == addresses.va
                    assert bytes(before[: 7 * MIB]) == some_bytes((name, 0), 7 * MIB)
                    with pytest.raises(PoolError, match="already"):
                        mine.copy("b", addresses)
            with pytest.raises(PoolError, match=f"of {10 * MIB} bytes, and not of {4 * MIB}"):
                mine.hold("small", addresses)
            with mine.copy("b", addresses), open_on_gpu(mine.tiers, mine.image("a")) as (elsewhere, arriving):
                assert elsewhere.va != addresses.va
                arriving.ready()
        assert {each.uses for each in pool.listed()} == {0}


def test_a_pool_without_an_arena_says_so(tmp_path: Path) -> None:
    with (
        running(tmp_path, "--host-memory", "16M") as pool,
        pool.connect() as mine,
        pytest.raises(PoolError, match="--pinned-memory"),
    ):
        mine.open_arena()
