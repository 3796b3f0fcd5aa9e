"""The suite `isolation` on the simulated stack: what it counts, what it holds to be proven, and that it can fail."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fault_injection.sim.script import Script
from tests.bench import ordered_cost
from tests.bench.core.bench import Bench
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding
from tests.bench.core.guard import Guard, Options
from tests.bench.core.programs import Work
from tests.bench.core.stop import StopRunError
from tests.bench.isolation import crashes, culprit, loops, memory, overrun, preload_cost, preloaded, terminate
from tests.bench.isolation.culprit import CLEAN, EXIT, KILL, KILL_IDLE, OOM, SEGV, Kind
from tests.bench.isolation.innocents import COUNT, Innocents, Report, longest
from tests.bench.isolation.overrun import says_where
from tests.bench.isolation.partial import kept
from tests.bench.isolation.tally import Tally, survival
from tests.bench.ordered_cost import Pairs
from tests.bench.preload_cost import MIB, Comparison, Cost
from tests.bench.simulated import SimulatedPrograms
from tests.harness.leftovers import end_all

pytestmark = pytest.mark.slow(seconds=60, reason="starts guards on the simulated stack")

LONG = 10.0
"""Seconds in which innocents that die have died even on a slow machine; those that live are watched for as long."""
IN_FLIGHT = 5.0
"""Seconds of a kernel that is still in flight when its client crashes, even on a slow machine."""
SHORT_HOLD = Options(crash_hold=2.0, exit_hold=2.0)
"""Of lifelines: at the end the suite waits until the last is let go."""


class SparingBench(Bench):
    """Its guard's lane does what a lifeline does on a GPU: what a dead client left behind ends by itself."""

    @contextmanager
    def guard(self, *, held_sockets: bool = False, options: Options | None = None) -> Iterator[Guard]:
        with super().guard(held_sockets=held_sockets, options=options) as guard:
            lane, _ = guard.lane()
            Script(lane.pipe_directory).spare_crashes()
            yield guard


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    yield Bench(tmp_path, SimulatedPrograms(), True, lambda _text: None)
    assert not end_all(tmp_path)


@pytest.fixture
def sparing(tmp_path: Path) -> Iterator[Bench]:
    yield SparingBench(tmp_path, SimulatedPrograms(), True, lambda _text: None)
    assert not end_all(tmp_path)


def by_name(findings: Iterable[Finding]) -> dict[str, Finding]:
    return {finding.row.name: finding for finding in findings}


def test_crashes_hold_where_what_is_left_behind_does_no_harm(sparing: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "STOCK_WATCH", LONG)
    monkeypatch.setattr(crashes, "LENGTHS", (IN_FLIGHT,))
    monkeypatch.setattr(crashes, "OPTIONS", SHORT_HOLD)
    found = by_name(crashes.measure(sparing))
    for kind in (KILL, SEGV, EXIT):
        row = found[f"{kind.name}: innocents that survive"].row
        assert (row.holds, row.value, row.count) == (True, 2 * COUNT, 2 * COUNT)
        assert row.peer is not None
        assert (row.peer.value, row.peer.count) == (0, COUNT)
        # Times of a simulation say nothing, but there is one: the crew was the same all the while.
        assert found[f"{kind.name}: innocents' slowest iteration over that beside clean ends"].samples
    assert found["lifelines left at the end"].row.holds
    assert found["innocents that died between two repetitions"].row.holds


def test_crashes_do_not_hold_where_the_innocents_die(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crashes, "KINDS", (KILL,))
    monkeypatch.setattr(crashes, "WATCH", LONG)
    monkeypatch.setattr(crashes, "STOCK_WATCH", LONG)
    monkeypatch.setattr(crashes, "LENGTHS", (IN_FLIGHT,))
    monkeypatch.setattr(crashes, "OPTIONS", SHORT_HOLD)
    found = by_name(crashes.measure(bench))
    row = found["SIGKILL: innocents that survive"].row
    assert (row.holds, row.value, row.count) == (False, 0, 2 * COUNT)
    assert found["SIGKILL: repetitions not made or not proven"].row.holds
    assert not found["SIGKILL: innocents' slowest iteration over that beside clean ends"].row.holds
    assert found["end in order: innocents that survive"].row.holds


def test_memory_is_seen_to_be_taken_and_free_again(sparing: Bench) -> None:
    found = by_name(memory.measure(sparing))
    for case, count in ((memory.ORDERLY, 2), (memory.IDLE, 1), (memory.BUSY, 1)):
        finding = found[f"1 GiB free after {case.name}"]
        assert finding.row.count == count
        assert max(finding.samples) < 20_000
        assert found[f"memory, {case.name}: repetitions not made or not proven"].row.holds


def test_memory_beside_innocents_that_die_is_not_measured(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CASES", ((memory.BUSY, 1, 1),))
    monkeypatch.setattr(memory, "_WATCH", LONG)
    found = by_name(memory.measure(bench))
    assert f"1 GiB free after {memory.BUSY.name}" not in found
    assert not found[f"memory, {memory.BUSY.name}: repetitions not made or not proven"].row.holds


@pytest.mark.parametrize(("each", "holds"), [([1.0, 50.0], True), ([1.0, 50.1], False), ([1.0], False)])
def test_memory_must_be_free_in_time_every_time(each: list[float], holds: bool) -> None:
    rows = by_name(memory.Times(memory.ORDERLY, 2, each=each).rows())
    assert rows[f"1 GiB free after {memory.ORDERLY.name}"].row.holds is holds


def test_terminate_leaves_the_innocents_alone(bench: Bench) -> None:
    found = by_name(terminate.measure(bench))
    name = "terminate, kernel of 5 s in flight"
    assert (
        found[f"{name}: innocents that survive"].row.holds,
        found[f"{name}: until the client was told"].row.count,
    ) == (
        True,
        2,
    )


def test_a_kernel_that_ends_by_itself_was_not_terminated(bench: Bench) -> None:
    with bench.stock() as stock, Clients() as clients:
        work = Work(seconds=0.1, controlled=True, fault="endless", in_flight=0.01)
        client = clients.start(bench.programs.worker(work), stock.pipe_directory, "ends")
        client.wait_for("first_kernel")
        client.go()
        with pytest.raises(SuiteError):
            terminate._told(client, client.wait_for("running").monotonic + 0.01)


@pytest.mark.parametrize(
    ("told", "held", "words"),
    [
        (KILL_IDLE, Kind("SIGKILL", "killidle", -9), "no kernel was in flight"),
        (KILL, Kind("SIGKILL", "kill", -11), "did not happen"),
        (KILL, Kind("SIGKILL", "kill", -9, slow=True), "may have ended before"),
    ],
)
def test_a_crash_that_is_not_proven_is_an_error(bench: Bench, told: Kind, held: Kind, words: str) -> None:
    with bench.stock() as stock, Clients() as clients:
        client = culprit.start(bench, stock, clients, told, in_flight=0.0001)
        client.wait_for("first_kernel")
        with pytest.raises(SuiteError, match=words):
            culprit.crash(client, held)


def test_innocents_are_renewed_when_they_have_suffered_and_only_then(bench: Bench) -> None:
    with bench.stock() as stock, Clients() as clients:
        innocents = Innocents(bench, stock, clients)
        innocents.ready()
        first = list(innocents.crew)
        innocents.ready()
        assert innocents.crew == first
        # In order: a crash would end the others, too, if the suite took long.
        first[0].end()
        innocents.ready()
        assert innocents.late == 1
        assert not set(first) & set(innocents.crew)
        assert innocents.alive() == COUNT


def test_the_length_in_flight_goes_from_10_ms_to_5_s() -> None:
    lengths = [crashes.length_of(KILL, number) for number in range(crashes.REPETITIONS)]
    assert min(filter(None, lengths)) == 0.01
    assert max(filter(None, lengths)) == 5.0
    assert crashes.length_of(CLEAN, 3) is None
    assert min(crashes.length_of(OOM, number) or 0.0 for number in range(20)) >= 1.0


def test_the_longest_iteration_is_that_of_the_seconds_that_touch_the_time() -> None:
    reports = [Report(1.0, 1.0, 0.9), Report(2.0, 1.0, 0.1), Report(3.0, 1.0, 0.2), Report(4.5, 1.5, 0.7)]
    assert longest(reports, 1.5, 2.0) == 0.1
    assert longest(reports, 1.5, 2.5) == 0.2
    assert longest(reports, 1.5, 3.5) == 0.7
    with pytest.raises(ValueError, match="did not report"):
        longest(reports, 1.5, 4.6)


@pytest.mark.parametrize(("survivors", "made", "holds"), [(6, 2, True), (5, 2, False), (3, 1, False), (0, 0, None)])
def test_survival_holds_if_all_was_made_and_none_died(survivors: int, made: int, holds: bool | None) -> None:
    rows = by_name(survival(Tally("it", 2, made=made, survivors=survivors), None))
    row = rows.get("it: innocents that survive")
    assert (row.row.holds if row else None) == holds
    assert rows["it: repetitions not made or not proven"].row.holds == (made == 2)


def test_what_cannot_be_done_here_does_not_hold() -> None:
    (row,) = survival(Tally("it", 2, skipped="no cgroup"), None)
    assert not row.row.holds
    assert row.note == "no cgroup"


def test_a_measurement_that_is_stopped_shows_what_it_has() -> None:
    tally = Tally("it", 2)

    def make() -> None:
        tally.add(COUNT)
        raise StopRunError("over the deadline")

    taken = kept(make, lambda: survival(tally, None))
    assert [next(taken).row.holds for _ in range(2)] == [False, False]
    with pytest.raises(StopRunError):
        next(taken)


def test_an_overrun_under_the_preload_harms_no_other_and_one_without_does(bench: Bench) -> None:
    found = by_name(overrun.measure(bench))
    row = found["overrun under the preload: innocents that survive"].row
    assert (row.holds, row.value, row.count) == (True, 2 * COUNT, 2 * COUNT)
    assert row.peer is not None
    assert (row.peer.value, row.peer.count) == (0, COUNT)
    assert found["overrun under the preload: the program finishes"].row.holds
    # A simulated GPU has no managed memory, and so no sensor that sees the access.
    named = found["overrun under the preload: incidents of class mmu that name the program"].row
    assert (named.value, named.count, named.holds) == (0, 2, False)
    placed = found["overrun under the preload: incidents that say how far outside it was, to 4096 bytes"].row
    assert (placed.value, placed.count, placed.holds) == (0, 2, False)


def test_loops_under_the_preload_are_compared_in_pairs(bench: Bench) -> None:
    found = by_name(finding for each in preload_cost.MEASUREMENTS for finding in each.run(bench))
    for name in (*loops.KERNELS.names, *loops.BUSY.names, *loops.SHORT.names):
        row = found[f"{name}, rate under the preload over plain (paired ratios)"].row
        assert row.peer is not None
        assert (row.count, row.peer.count, row.peer.name) == (2, 2, "plain over plain")
    assert not found["latency of allocations under the preload: skipped"].row.holds


def one_size(size: int, allocate: float, taken: int) -> Comparison:
    plain = Cost(1.0, 1.0, 1.0, 1.0, asked=1000, taken=1000, left=0)
    return Comparison(size, plain, Cost(allocate, 1.0, 1.0, 1.0, asked=1000, taken=taken, left=0))


@pytest.mark.parametrize(
    ("compared", "latency", "memory_holds"),
    [
        ([one_size(4096, 9.0, 1000), one_size(2 * MIB, 2.0, 1019)], True, True),
        ([one_size(2 * MIB, 1.0, 1000), one_size(256 * MIB, 2.1, 1000)], False, True),
        ([one_size(4096, 1.0, 1021), one_size(2 * MIB, 1.0, 1000)], True, False),
    ],
)
def test_allocations_hold_by_the_worst_size(compared: list[Comparison], latency: bool, memory_holds: bool) -> None:
    first, second = preload_cost.allocation_rows(compared)
    assert (first.row.holds, second.row.holds) == (latency, memory_holds)


@pytest.mark.parametrize(("pairs", "worst", "holds"), [((9.0, 1.5, 2.0), 2.0, True), ((1.0, 2.5, 1.0), 2.5, False)])
def test_pairs_in_stream_order_hold_by_the_worst_size(
    pairs: tuple[float, float, float], worst: float, holds: bool
) -> None:
    plain = Pairs(1.0, 1.0, 1.0, 0)
    compared = [
        ordered_cost.Comparison(size, plain, Pairs(pair, 9.0, 9.0, 0))
        for size, pair in zip((4096, 2 * MIB, 256 * MIB), pairs, strict=True)
    ]
    row = preload_cost.ordered_row(compared).row
    assert (row.value, row.holds) == (worst, holds)


@pytest.mark.parametrize(
    ("lines", "processes", "holds"),
    [
        (['{"pid":1,"placed":3,"placed_small":0,"plain_driver":1}'], 1, True),
        (['{"pid":1,"placed":3,"placed_small":0}'], 2, False),
        (['{"pid":1,"placed":0,"placed_small":0,"plain_unarmed":4}'], 1, False),
        ([], 0, False),
    ],
)
def test_a_preload_that_does_nothing_has_no_cost_to_show(
    tmp_path: Path, lines: list[str], processes: int, holds: bool
) -> None:
    report = tmp_path / "report.txt"
    report.write_text("\n".join(lines))
    assert preload_cost.use(preloaded.served(report), processes).row.holds is holds


@pytest.mark.parametrize(
    ("access", "beyond", "right"),
    [
        (("--past", "0"), 1, True),
        (("--past", "1048576"), 1048577, True),
        (("--past", "1048576"), 1044481, False),
        (("--before", "4"), -4096, True),
        (("--before", "4"), 1, False),
        (("--before", "8192"), -4, False),
        (("--past", "0"), -4, False),
    ],
)
def test_an_incident_says_where_if_the_offset_is_that_of_the_access(
    access: tuple[str, ...], beyond: int, right: bool
) -> None:
    assert says_where({"what": {"type": "zone_hit", "beyond": beyond}}, access) is right
    assert not says_where({"what": {"type": "uvm_fault", "beyond": beyond}}, access)
    assert not says_where({}, access)
