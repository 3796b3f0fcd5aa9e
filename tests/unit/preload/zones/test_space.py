"""Regions with zones, against a stub of the driver: system calls, table and accounting are the real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mpsguard.preload import zones
from mpsguard.preload.zone_table import Part
from mpsguard.preload.zones import (
    BudgetError,
    NoZonesError,
    ZoneCudaError,
    ZoneError,
    ZoneKind,
    ZoneSettings,
    ZoneSpace,
)
from mpsguard.preload.zones.driver import Context
from tests.unit.preload.zones.stub import FDS, MIB, UNIT, StubDriver, StubUvm, armed_in_maps, table_of_this_process


@pytest.fixture
def stub_uvm() -> Iterator[StubUvm]:
    before = len(os.listdir(FDS))
    uvm = StubUvm()
    yield uvm
    uvm.close()
    assert (armed_in_maps(), uvm.sparse, len(os.listdir(FDS))) == (0, {}, before)


def test_an_address_in_a_zone_is_found_in_the_table_with_its_offset(stub_uvm: StubUvm) -> None:
    driver = StubDriver()
    with ZoneSpace(driver=driver, uvm=stub_uvm.uvm) as space:
        first = space.allocate(3 * MIB + 5)
        second = space.allocate(MIB, front=0, back=4 * MIB)
        assert (first.kind, second.kind) == (ZoneKind.TRIPWIRE, ZoneKind.TRIPWIRE)
        assert space.armed == armed_in_maps() == (16 + 64 + 4) * MIB
        table = table_of_this_process()
        assert (table.pid, table.counters["placed"], table.unreadable) == (os.getpid(), 2, 0)
        place = table.locate(first.address + first.size + 1000)
        assert place is not None
        assert (place.part, place.armed, place.beyond, place.region.number) == (Part.BACK, True, 1001, first.number)
        before = table.locate(first.address - 8 * MIB)
        assert before is not None
        assert (before.part, before.armed, before.beyond) == (Part.FRONT, True, -8 * MIB)
        # An overrun of the second meets its zone at the next alignment boundary.
        edge = table.locate(second.address + MIB)
        assert edge is not None
        assert (edge.part, edge.armed) == (Part.BACK, True)
        assert not edge.region.front_armed
        first.close()
        first.close()
        assert [region.number for region in table_of_this_process().regions] == [second.number]
        assert space.armed == armed_in_maps() == 4 * MIB
        assert first.kind is ZoneKind.NONE
    space.close()
    assert driver.holds_nothing
    assert driver.synchronized == [driver.context] * 2


def test_a_region_is_given_to_array_libraries_as_bytes(stub_uvm: StubUvm) -> None:
    with ZoneSpace(driver=StubDriver(), uvm=stub_uvm.uvm) as space, space.allocate(100) as region:
        statuses = region.__cuda_array_interface__
    assert (statuses["shape"], statuses["typestr"], statuses["data"]) == ((100,), "|u1", (region.address, False))


def test_more_than_the_card_can_bear_is_refused_and_nothing_is_left(stub_uvm: StubUvm) -> None:
    # 512 MiB are left alone, and a quarter of the rest is 64 MiB: the zones wanted are 80.
    driver = StubDriver(free=(512 + 2 + 256) * MIB)
    with ZoneSpace(driver=driver, uvm=stub_uvm.uvm) as space:
        with pytest.raises(BudgetError, match="83886080"):
            space.allocate(MIB)
        assert driver.holds_nothing
        assert armed_in_maps() == 0
        region = space.allocate(MIB, front=0, back=64 * MIB)
        with pytest.raises(BudgetError):
            space.allocate(MIB, front=0, back=UNIT)
        assert table_of_this_process().regions[0].back_armed
        region.close()


def test_the_space_has_a_limit_of_its_own(stub_uvm: StubUvm) -> None:
    with ZoneSpace(ZoneSettings(limit=100 * MIB), driver=StubDriver(), uvm=stub_uvm.uvm) as space:
        space.allocate(MIB)
        with pytest.raises(BudgetError):
            space.allocate(MIB)


def test_zones_go_when_the_card_has_become_full(stub_uvm: StubUvm) -> None:
    driver = StubDriver()
    with ZoneSpace(driver=driver, uvm=stub_uvm.uvm) as space:
        old, young = space.allocate(MIB), space.allocate(MIB)
        driver.free = (512 + 2 + 4 * 90) * MIB  # allows 90 MiB: one of the two, and 10 more
        newest = space.allocate(MIB, front=UNIT, back=UNIT)
        assert [each.kind for each in (old, young, newest)] == [ZoneKind.NONE, ZoneKind.TRIPWIRE, ZoneKind.TRIPWIRE]
        table = table_of_this_process()
        assert {region.number: region.back_armed for region in table.regions} == {1: False, 2: True, 3: True}
        assert table.counters["shed"] == 1
        assert space.armed == armed_in_maps() == 84 * MIB
    assert driver.holds_nothing


@pytest.mark.parametrize("lacks", ["managed access", "a descriptor that takes mappings"])
def test_sparse_zones_stand_in_where_there_are_no_managed_ranges(lacks: str) -> None:
    stub = StubUvm(takes_mappings=lacks == "managed access")
    driver = StubDriver(lacking=89 if lacks == "managed access" else None)
    with ZoneSpace(driver=driver, uvm=stub.uvm) as space:
        region = space.allocate(MIB)
        assert (region.kind, space.armed, armed_in_maps()) == (ZoneKind.SPARSE, 0, 0)
        assert sorted(stub.sparse.values()) == [16 * MIB, 64 * MIB]
        # Nothing is told of what happens there, and the table says so.
        place = table_of_this_process().locate(region.address + 2 * MIB)
        assert place is not None
        assert (place.part, place.armed) == (Part.BACK, False)
    assert (stub.sparse, driver.holds_nothing) == ({}, True)
    stub.close()


def test_where_there_is_neither_a_region_has_none_or_is_refused() -> None:
    stub = StubUvm(takes_mappings=False, sparse=False)
    driver = StubDriver()
    with ZoneSpace(driver=driver, uvm=stub.uvm) as space:
        assert space.allocate(MIB).kind is ZoneKind.NONE
        assert stub.sparse == {}
    with ZoneSpace(ZoneSettings(kinds=(ZoneKind.TRIPWIRE, ZoneKind.SPARSE)), driver=driver, uvm=stub.uvm) as space:
        with pytest.raises(NoZonesError, match=r"tripwire: .*; sparse: "):
            space.allocate(MIB)
        assert driver.holds_nothing
    with pytest.raises(NoZonesError), ZoneSpace(driver=StubDriver(lacking=102), uvm=stub.uvm) as space:
        space.allocate(MIB)
    stub.close()


@pytest.mark.parametrize("call", ["reserve", "create", "map", "release"])
def test_a_driver_that_refuses_leaves_nothing_behind(stub_uvm: StubUvm, call: str) -> None:
    driver = StubDriver()
    with ZoneSpace(driver=driver, uvm=stub_uvm.uvm) as space:
        driver.refuse = {call: 1}
        with pytest.raises(ZoneCudaError, match=f"{call}: CUDA error 2"):
            space.allocate(MIB)
        assert (space.armed, armed_in_maps()) == (0, 0)
        assert driver.holds_nothing
        assert table_of_this_process().regions == ()


@pytest.mark.parametrize("call", ["synchronize", "unmap", "release_addresses"])
def test_what_the_driver_keeps_is_taken_back_the_next_time(stub_uvm: StubUvm, call: str) -> None:
    driver = StubDriver()
    space = ZoneSpace(driver=driver, uvm=stub_uvm.uvm)
    kept, other = space.allocate(MIB), space.allocate(MIB)
    driver.refuse = {call: 1}
    with pytest.raises(ZoneCudaError):
        space.close()
    assert not driver.holds_nothing
    kept.close()
    other.close()
    space.close()
    assert driver.holds_nothing


def test_a_closed_space_and_a_child_make_nothing(stub_uvm: StubUvm) -> None:
    space = ZoneSpace(driver=StubDriver(), uvm=stub_uvm.uvm)
    region = space.allocate(MIB)
    if (child := os.fork()) == 0:
        try:
            space.allocate(MIB)
        except ZoneError:
            region.close()
            space.close()
            os._exit(0 if armed_in_maps() else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert space.armed == 80 * MIB
    space.close()
    with pytest.raises(ZoneError):
        space.allocate(MIB)


def test_work_is_waited_for_in_the_context_that_a_region_was_made_in(stub_uvm: StubUvm) -> None:
    driver = StubDriver()
    with ZoneSpace(driver=driver, uvm=stub_uvm.uvm) as space:
        region = space.allocate(MIB)
        driver.context = Context(8, 0)
        region.close()
    assert driver.synchronized == [Context(7, 0)]


@pytest.mark.parametrize(
    "wrong",
    [{"front": -1}, {"back": 1 << 48}, {"alignment": 128}, {"alignment": 768}, {"alignment": 4 * MIB}, {"kinds": ()}],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(zones.SettingsError, match=next(iter(wrong))):
        ZoneSettings(**wrong)  # type: ignore[arg-type]
