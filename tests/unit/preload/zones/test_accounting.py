"""What is armed and what is told of it, whatever happens in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from mpsguard.preload.zone_layout import MARGIN
from mpsguard.preload.zone_table import ZoneRegion
from mpsguard.preload.zones import BudgetError, ZoneCudaError, ZonedRegion, ZoneKind, ZoneSpace, budget
from mpsguard.preload.zones.table import SLOTS, TableWriter
from tests.harness.examples import examples
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.unit.preload.zones.stub import MIB, StubDriver, StubUvm, armed_in_maps, table_of_this_process

pytestmark = pytest.mark.slow(seconds=10, reason="a long random history")

sizes = st.integers(0, 1 << 48)
CALLS = ("reserve", "create", "map", "release", "unmap", "release_addresses", "synchronize", "free_memory")


@given(sizes, sizes, st.integers(0, 1 << 63))
def test_no_more_may_be_armed_than_is_free_once_the_memory_is_taken(free: int, memory: int, limit: int) -> None:
    most = budget.most(free, memory, limit)
    assert 0 <= most <= limit
    assert most == 0 or 4 * most <= free - memory - MARGIN


@given(sizes, sizes, sizes)
def test_what_is_armed_stays_within_what_is_allowed(wanted: int, armed: int, allowed: int) -> None:
    try:
        budget.check(wanted, armed=armed, allowed=allowed, free=0)
    except BudgetError:
        assert armed + wanted > allowed
    else:
        assert armed + wanted <= allowed


@given(st.dictionaries(st.integers(1, 1000), st.integers(0, 1 << 30)), st.integers(0, 1 << 35))
def test_the_oldest_are_shed_and_no_more_than_needed(armed: dict[int, int], allowed: int) -> None:
    shed = budget.to_shed(armed.items(), allowed)
    kept = {number: length for number, length in armed.items() if number not in shed and length}
    assert sum(kept.values()) <= allowed
    assert shed == sorted(shed)
    assert not shed or sum(kept.values()) + armed[shed[-1]] > allowed
    assert not shed or all(number > shed[-1] for number in kept)


class Spaces(RuleBasedStateMachine):
    """A program that allocates and frees while the card fills and the driver refuses."""

    regions: Bundle[ZonedRegion] = Bundle("regions")

    def __init__(self) -> None:
        super().__init__()
        self.before = open_descriptors()
        self.uvm = StubUvm()
        self.driver = StubDriver()
        self.space = ZoneSpace(driver=self.driver, uvm=self.uvm.uvm)
        self.live: dict[int, ZonedRegion] = {}

    @rule(
        target=regions,
        size=st.integers(1, 5 * MIB),
        front=st.sampled_from([0, 1, 16 * MIB]),
        back=st.sampled_from([0, 2 * MIB, 64 * MIB]),
    )
    def allocate(self, size: int, front: int, back: int) -> ZonedRegion:
        before = self.space.armed
        try:
            region = self.space.allocate(size, front=front, back=back)
        except (BudgetError, ZoneCudaError):
            assert self.space.armed <= before
            return multiple()  # type: ignore[return-value]
        # A quarter of what is free in all, never more.
        assert self.space.armed == 0 or 4 * self.space.armed <= self.driver.free
        self.live[region.number] = region
        return region

    @rule(free=st.integers(0, 4 << 30))
    def fill_the_card(self, free: int) -> None:
        self.driver.free = free

    @rule(call=st.sampled_from(CALLS), nth=st.integers(1, 3))
    def refuse(self, call: str, nth: int) -> None:
        self.driver.refuse[call] = nth

    @rule(region=consumes(regions))
    def close(self, region: ZonedRegion) -> None:
        try:
            region.close()
        except ZoneCudaError as error:
            if error.call == "synchronize":
                assert region.number in {each.number for each in table_of_this_process().regions}
                self.driver.refuse.clear()
                region.close()
        self.live.pop(region.number)

    @invariant()
    def the_kernel_has_what_is_accounted_for(self) -> None:
        assert self.space.armed == armed_in_maps()

    @invariant()
    def the_table_has_the_live_regions_and_no_others(self) -> None:
        table = table_of_this_process()
        assert table.unreadable == 0
        assert {each.number: each.user for each in table.regions} == {
            number: region.address for number, region in self.live.items()
        }
        for each in table.regions:
            tripwire = self.live[each.number].kind is ZoneKind.TRIPWIRE
            assert (each.front_armed, each.back_armed) == (tripwire and each.front > 0, tripwire and each.back > 0)

    def teardown(self) -> None:
        self.driver.refuse.clear()
        self.space.close()
        assert self.driver.holds_nothing
        assert armed_in_maps() == 0
        self.uvm.close()
        assert opened_since(self.before) == []


TestSpaces = Spaces.TestCase
TestSpaces.settings = settings(max_examples=examples(20), stateful_step_count=30, deadline=None)


def region_at(number: int) -> ZoneRegion:
    start = number << 30
    return ZoneRegion(
        number, 0, start, MIB, 4 * MIB, MIB, start + MIB, MIB, front_armed=True, back_armed=True, slab=False
    )


def test_a_full_table_counts_what_it_has_no_room_for() -> None:
    table = TableWriter()
    try:
        slots = [table.add(region_at(number)) for number in range(1, SLOTS + 1)]
        assert table.add(region_at(SLOTS + 1)) is None
        table.remove(None)
        table.remove(slots[5])
        assert table.add(region_at(SLOTS + 2)) == slots[5]
        found = table_of_this_process()
        assert len(found.regions) == SLOTS
        assert found.counters["unlisted"] == 1
    finally:
        table.close()
