"""The arithmetic of zones, and its two forms against each other."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.preload import build, zone_layout
from mpsguard.preload.zone_layout import LayoutError, ZoneLayout

GRANULARITY = 2 << 20

sizes = st.one_of(st.integers(0, 3 * GRANULARITY), st.integers(0, 1 << 48))
zones = st.one_of(st.integers(0, 64 << 20), st.integers(0, 1 << 48))
alignments = st.sampled_from([256, 512, 4096, GRANULARITY])
words = st.integers(0, (1 << 64) - 1)


class CLayout(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("front", "memory", "back", "total", "user")]


@pytest.fixture(scope="module")
def in_c(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed: the C form cannot be built")
    target = tmp_path_factory.mktemp("layout") / "layout.so"
    command = ["gcc", *build.FLAGS, "-fvisibility=default", "-shared", "-o", str(target)]
    command.append(str(Path(build.SOURCES, "layout.c")))
    subprocess.run(command, check=True, timeout=120)
    library = ctypes.CDLL(str(target))
    word = ctypes.c_uint64
    library.layout_plan.argtypes = [word, word, word, word, word, ctypes.c_int, ctypes.POINTER(CLayout)]
    library.layout_plan.restype = ctypes.c_bool
    for name in ("layout_allowed", "layout_zone"):
        getattr(library, name).argtypes = [word, word, word]
        getattr(library, name).restype = word
    return library


@given(sizes, zones, zones, alignments, st.booleans())
def test_a_region_holds_what_was_asked_for(size: int, front: int, back: int, alignment: int, at_end: bool) -> None:
    try:
        layout = zone_layout.plan(size, front, back, granularity=GRANULARITY, alignment=alignment, at_end=at_end)
    except LayoutError:
        assert size == 0 or size + front + back + 3 * GRANULARITY > 1 << zone_layout.ADDRESS_BITS
        return
    assert layout.user % alignment == 0
    assert layout.front <= layout.user
    assert layout.user + size <= layout.front + layout.memory
    assert all(part % GRANULARITY == 0 for part in (layout.front, layout.memory, layout.back))
    assert layout.memory - size < GRANULARITY
    assert (layout.front >= front, layout.back >= back) == (True, True)
    if at_end:
        assert layout.front + layout.memory - (layout.user + size) < alignment
    else:
        assert layout.user == layout.front


@given(words, words, words)
def test_no_more_is_armed_than_is_free(free: int, margin: int, limit: int) -> None:
    allowed = zone_layout.allowed(free, margin, limit)
    assert 0 <= allowed <= limit
    assert 4 * allowed <= max(free - margin, 0)


@given(st.lists(st.integers(1, 128 << 20), max_size=200), st.integers(0, 64 << 30))
def test_zones_shrink_before_there_are_none(wanted: list[int], allowed: int) -> None:
    left, lengths = allowed, []
    for length in wanted:
        armed = zone_layout.zone(length, left, GRANULARITY)
        if armed > left:
            break
        assert armed >= GRANULARITY
        assert armed <= max(zone_layout.round_up(length, GRANULARITY), GRANULARITY)
        lengths.append(armed)
        left -= armed
    assert sum(lengths) <= allowed


def test_the_two_forms_agree(in_c: ctypes.CDLL) -> None:
    @given(sizes, zones, zones, alignments, st.booleans())
    def layouts(size: int, front: int, back: int, alignment: int, at_end: bool) -> None:
        out = CLayout()
        done = in_c.layout_plan(size, front, back, GRANULARITY, alignment, 0 if at_end else 1, ctypes.byref(out))
        try:
            layout = zone_layout.plan(size, front, back, granularity=GRANULARITY, alignment=alignment, at_end=at_end)
        except LayoutError:
            assert not done
        else:
            assert (done, ZoneLayout(out.front, out.memory, out.back, out.user)) == (True, layout)
            assert out.total == layout.total

    @given(words, words, words)
    def allowances(free: int, margin: int, limit: int) -> None:
        assert in_c.layout_allowed(free, margin, limit) == zone_layout.allowed(free, margin, limit)

    @given(st.integers(0, 1 << 48), words)
    def lengths(wanted: int, left: int) -> None:
        assert in_c.layout_zone(wanted, left, GRANULARITY) == zone_layout.zone(wanted, left, GRANULARITY)

    layouts()
    allowances()
    lengths()
