"""Regions of host memory, mapped for real and held by a real vault: the same code maps a GPU's with other calls."""

import ctypes
import faulthandler
import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mpsguard.client import (
    Chunk,
    LayoutMismatchError,
    LeaseRole,
    SealedError,
    Session,
    UnknownRegionError,
    WrongGpuError,
)
from mpsguard.vault.client.mapped import AddressTakenError, HostBackend, Memory, attach, create
from mpsguard.vault.client.mapped.layout import FIRST, STEP, chunk_sizes, pieces
from mpsguard.vault.client.session_memory import MappedAhead
from tests.harness.open_descriptors import Descriptors, open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import ThreadedVault, close_chunks, content, memory

PAGE = 4096


def settled(vault: ThreadedVault, before: Descriptors) -> None:
    """The vault is a thread of this process, and has descriptors of its own for a moment after it has answered."""
    vault.settle()
    wait_for("all descriptors to be given back", lambda: not opened_since(before))


@pytest.fixture
def vault() -> Iterator[ThreadedVault]:
    with ThreadedVault() as running:
        yield running
        running.storage.empty()


def mappings() -> list[str]:
    """What is mapped where regions lie."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if 0x2000_0000_0000 <= int(line.split("-")[0], 16) < 0x5000_0000_0000]


def test_another_process_finds_it_at_the_same_address(vault: ThreadedVault) -> None:
    program = (
        "import sys; from mpsguard.client import LeaseRole, Session; from mpsguard.vault.client.mapped import *\n"
        "session = Session('s', socket=sys.argv[1], role=LeaseRole.READER)\n"
        "with session, attach(session, HostBackend(), 'r') as memory:\n"
        "    print(hex(memory.va), memory.view(8000, 7).read().decode(), len(memory.region.layout.sizes))"
    )
    with vault.session() as writer, create(writer, HostBackend(), "r", 10000, largest=PAGE) as made:
        made.view(8000).write(b"forward")
        command = [sys.executable, "-c", program, vault.socket]
        said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]).stdout
        assert said.split() == [hex(made.va), "forward", "3"]


def test_it_outlives_its_maker(vault: ThreadedVault) -> None:
    program = (
        "import os, signal, sys; from mpsguard.client import Session; from mpsguard.vault.client.mapped import *\n"
        "memory = create(Session('s', socket=sys.argv[1], keep=None), HostBackend(), 'r', 4096)\n"
        "memory.view().write(b'here'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", program, vault.socket], check=False, cwd=Path(__file__).parents[3])
    assert done.returncode == -signal.SIGKILL
    with vault.standby() as session, attach(session, HostBackend(), "r") as found:
        assert found.view(0, 4).read() == b"here"


def test_it_is_writable_only_where_that_was_asked_for(vault: ThreadedVault) -> None:
    with vault.session() as writer, create(writer, HostBackend(), "r", PAGE) as made:
        made.view().write(b"a" * PAGE)
        pid = os.fork()
        if pid == 0:
            # Its own session, its own place: what is tried here may end it.
            status = 1
            try:
                made.close()
                session = Session("s", socket=vault.socket, role=LeaseRole.READER)
                attached = attach(session, HostBackend(), "r")
                with pytest.raises(PermissionError):
                    attached.view().write(b"b")
                status = 0
                # The fault that follows is meant, and nothing to be told.
                faulthandler.disable()
                ctypes.memset(attached.va, 0, 1)
            finally:
                os._exit(status)
        assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGSEGV
        assert made.view(0, 1).read() == b"a"


def test_sealed_chunks_are_not_mapped_writable(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        create(writer, HostBackend(), "r", 2 * PAGE, largest=PAGE).close()
        attach(writer, HostBackend(), "r", writable=True).close()
        writer.seal("r", (1,))
        with pytest.raises(SealedError):
            attach(writer, HostBackend(), "r", writable=True)
        attach(writer, HostBackend(), "r").close()


def test_a_region_lies_nowhere_else(vault: ThreadedVault) -> None:
    with vault.session() as writer, vault.standby() as standby, create(writer, HostBackend(), "r", PAGE):
        before = open_descriptors(), len(mappings())
        with pytest.raises(AddressTakenError, match="'r' belongs at 0x200000000000"):
            attach(standby, HostBackend(), "r")
        settled(vault, before[0])
        assert len(mappings()) == before[1]


def map_ahead(session: Session, name: str, content: bytes, largest: int | None = None) -> MappedAhead:
    """Map memory, make a region of it, and leave the mapping to the session, as a migration does."""
    backend, undo = HostBackend(), ExitStack()
    sizes = chunk_sizes(len(content), PAGE, largest)
    assert backend.reserve(FIRST, STEP) == FIRST
    undo.callback(backend.unreserve, FIRST, STEP)
    chunks = []
    for start, length in pieces(FIRST, sizes):
        handle = backend.make(length)
        chunks.append(Chunk(backend.export(handle), length))
        backend.map(start, length, handle)
        backend.drop(handle)
        undo.callback(backend.unmap, start, length)
    backend.allow(FIRST, len(content), writable=True)
    backend.write(FIRST, content)
    session.create(name, chunks, va=FIRST)
    close_chunks(chunks)
    ahead = MappedAhead(FIRST, sizes, None, undo)
    session.memory.keep_ahead(name, ahead)
    return ahead


@pytest.mark.parametrize("writable", [False, True])
def test_what_was_mapped_ahead_is_not_mapped_again(vault: ThreadedVault, writable: bool) -> None:
    with vault.session() as writer:
        before = mappings()
        map_ahead(writer, "r", b"ahead".ljust(3 * PAGE), largest=PAGE)
        # Its addresses are taken: mapping them again is refused.
        with attach(writer, HostBackend(), "r", writable=writable) as memory:
            assert memory.view(0, 5).read() == b"ahead"
            found = [line.split()[1] for line in mappings() if f"{FIRST:x}-" in line]
            assert found == ["rw-s" if writable else "r--s"]
        assert mappings() == before
        # And then as always.
        attach(writer, HostBackend(), "r").close()


def test_what_is_mapped_ahead_goes_with_its_session(vault: ThreadedVault) -> None:
    before = mappings()
    with vault.session() as writer:
        map_ahead(writer, "r", b"ahead".ljust(PAGE))
        assert mappings() != before
    assert mappings() == before


@pytest.mark.parametrize("pages", [1, 2])
def test_what_was_mapped_ahead_of_another_region_is_given_back(vault: ThreadedVault, pages: int) -> None:
    with vault.session() as writer:
        before = mappings()
        map_ahead(writer, "r", b"old".ljust(pages * PAGE))
        writer.release("r")
        assert mappings() == before
        new = memory(1)
        writer.create("r", [new], va=FIRST)
        close_chunks([new])
        with attach(writer, HostBackend(), "r") as attached:
            assert (attached.size, attached.view().read()) == (PAGE, content(1))


def test_a_new_region_makes_way_for_what_is_there_and_for_the_sessions_others(vault: ThreadedVault) -> None:
    backend = HostBackend()
    assert backend.reserve(FIRST + STEP, PAGE) == FIRST + STEP
    with vault.session() as writer, create(writer, backend, "a", PAGE) as a:
        a.close()
        with create(writer, backend, "b", PAGE) as b:
            assert (a.va, b.va) == (FIRST, FIRST + 2 * STEP)
    backend.unreserve(FIRST + STEP, PAGE)


def test_what_is_no_such_memory_is_refused(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        odd, placeless = memory(1, PAGE + 100), memory(2)
        writer.create("odd", [odd], va=FIRST)
        writer.create("placeless", [placeless])
        close_chunks([odd, placeless])
        before = open_descriptors(), mappings()
        for name in ("odd", "placeless"):
            with pytest.raises(LayoutMismatchError):
                attach(writer, HostBackend(), name)
        with pytest.raises(UnknownRegionError):
            attach(writer, HostBackend(), "none")
        settled(vault, before[0])
        assert mappings() == before[1]


def test_memory_of_another_device_is_refused() -> None:
    with ThreadedVault(simulated=True) as running:
        with running.session() as writer:
            chunk = memory(1)
            writer.create("r", [chunk], va=FIRST, gpu="GPU-1")
            close_chunks([chunk])
            with pytest.raises(LayoutMismatchError):
                attach(writer, HostBackend(), "r")
            other = HostBackend()
            other.gpu = "GPU-2"
            with pytest.raises(WrongGpuError):
                attach(writer, other, "r")
        running.storage.empty()


def test_a_view_keeps_the_region_mapped(vault: ThreadedVault) -> None:
    with vault.session() as writer, create(writer, HostBackend(), "r", PAGE) as made:
        view = made.view(8, 8)
        with pytest.raises(BufferError, match="1 views"):
            made.close()
        view.write(b"12345678")
        assert view.__array_interface__["data"] == (made.va + 8, False)
        with pytest.raises(AttributeError):
            _ = view.__cuda_array_interface__
        for wrong in ((-1, 1), (0, PAGE + 1), (PAGE + 1, None), (8, -1)):
            with pytest.raises(ValueError, match="bytes"):
                made.view(*wrong)
        with pytest.raises(ValueError, match="view of 8"):
            view.write(b"123456789")
        del view
        made.close()
        assert mappings() == []


def test_an_exception_goes_through_whatever_views_it_holds(vault: ThreadedVault) -> None:
    def work(made: Memory) -> None:
        view = made.view()
        raise RuntimeError(view.nbytes)

    with vault.session() as writer:
        made = create(writer, HostBackend(), "r", PAGE)
        with pytest.raises(RuntimeError), made:
            work(made)
        gc.collect()
        made.close()


class RefusedError(Exception):
    pass


class RefusingBackend(HostBackend):
    """Host memory, of which one call is refused: the count says which."""

    def __init__(self, refused: int) -> None:
        super().__init__()
        self.left = refused

    def __getattribute__(self, name: str) -> Any:
        if name in {"make", "export", "reserve", "map", "allow"}:
            self.left -= 1
            if self.left < 0:
                raise RefusedError(name)
        return super().__getattribute__(name)


def test_whatever_is_refused_nothing_is_left_behind(vault: ThreadedVault) -> None:
    with vault.session() as writer:
        vault.settle()
        before = open_descriptors()
        refused = 0
        while True:
            try:
                made = create(writer, RefusingBackend(refused), "r", 3 * PAGE, largest=PAGE)
            except RefusedError:
                refused += 1
                settled(vault, before)
                assert (mappings(), list(writer.names())) == ([], [])
            else:
                break
        made.close()
        assert refused == 1 + 3 * 3 + 1
        vault.settle()
        before = open_descriptors()
        refused = 0
        while True:
            try:
                attached = attach(writer, RefusingBackend(refused), "r")
            except RefusedError:
                refused += 1
                settled(vault, before)
                assert mappings() == []
            else:
                break
        attached.close()
        assert refused == 1 + 3 + 1
        settled(vault, before)
        assert mappings() == []


@pytest.mark.parametrize("seed", range(3))
def test_many_lives_leave_nothing(vault: ThreadedVault, seed: int) -> None:
    chance = random.Random(seed)
    with vault.session() as writer:
        vault.settle()
        before = open_descriptors()
        live: dict[str, Memory] = {}
        for index in range(150):
            if live and chance.random() < 0.5:
                name = chance.choice(list(live))
                gone = live.pop(name)
                content = gone.view(0, len(name)).read()
                assert content == name.encode()
                gone.close()
                with attach(writer, HostBackend(), name) as again:
                    assert again.va == gone.va
                    assert again.view(0, len(name)).read() == name.encode()
                writer.release(name)
            else:
                name = f"r{index}"
                live[name] = create(writer, HostBackend(), name, chance.randrange(1, 20 * PAGE), largest=4 * PAGE)
                live[name].view().write(name.encode())
        for name, each in live.items():
            each.close()
            writer.release(name)
        assert mappings() == []
        settled(vault, before)
