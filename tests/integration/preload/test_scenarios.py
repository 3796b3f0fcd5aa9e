"""An unmodified program under the preload, against a stub libcuda: every way to the driver, every way back."""

from __future__ import annotations

import pytest

from mpsguard.preload.library import Placement, PreloadSettings, Small
from tests.integration.preload.bench import Bench

pytestmark = pytest.mark.slow(seconds=100, reason="compiles the preload with sanitizers")

SCENARIOS = [
    "placed",
    "overrun",
    "reported",
    "pitch",
    "waits",
    "reused",
    "many_small",
    "contexts",
    "threads",
    "ipc",
    "capture",
    "capture_modes",
    "green",
    "failures",
    "out_of_memory",
    "makes_room",
    "limit",
    "forks",
    "newer_version",
    "described",
    "used_again_large",
    "used_again_small",
    "default_streams",
    "stream_zero",
    "given_back",
    "bounded",
    "waits_for_nothing",
    "while_captured",
    "makes_room_in_order",
    "refused",
    "elsewhere",
    "many_streams",
    "threads_in_order",
    "pools_served",
    "many_pools",
    "pools_counted",
    "pools_destroyed",
    "pools_emptied",
    "two_drains",
    "destroyed_while_freed",
    "destroyed_while_drained",
]

WAYS = [
    "direct",
    "default",
    "proc1",
    "proc2",
    "ptsz",
    "nested",
    "plugin:{}/plugin.so:now:direct",
    "plugin:{}/plugin.so:deepbind:direct",
    "plugin:{}/lazy_plugin.so:lazy,deepbind:direct",
    # By its name alone it is found along the program's RUNPATH.
    "plugin:plugin.so:deepbind:direct",
    "plugin:{}/plugin.so:deepbind:dlsym",
    "plugin:plugin.so:deepbind:proc2",
]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_by_dlsym(plain: Bench, scenario: str) -> None:
    plain.passes("dlsym", scenario)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_under_address_and_undefined_behaviour_sanitizers(sanitized: Bench, scenario: str) -> None:
    sanitized.passes("direct", scenario)


@pytest.mark.parametrize(
    "scenario",
    ["threads", "capture", "capture_modes", "contexts", "threads_in_order", "two_drains", "destroyed_while_drained"],
)
def test_under_thread_sanitizer(thread_sanitized: Bench, scenario: str) -> None:
    thread_sanitized.passes("proc2", scenario)


@pytest.mark.parametrize(
    "scenario",
    ["placed", "reported", "ipc", "capture", "described", "given_back", "while_captured", "pools_counted"],
)
@pytest.mark.parametrize("way", WAYS)
def test_by_every_method(plain: Bench, way: str, scenario: str) -> None:
    plain.passes(way.format(plain.directory), scenario)


@pytest.mark.parametrize(("way", "per_thread"), [("direct", False), ("proc2", False), ("ptsz", True)])
def test_the_default_stream_is_that_of_the_way(plain: Bench, way: str, *, per_thread: bool) -> None:
    plain.passes(way, "stream_zero", None, **({"WAY_PER_THREAD": "1"} if per_thread else {}))


@pytest.mark.parametrize(
    ("environment", "counter"),
    [
        ({"STUB_DEVICES": "2", "STUB_NO_PEERS": "1"}, "plain_devices"),
        ({"STUB_LACKS": "102"}, "plain_device"),
        ({"STUB_LACKS": "89"}, "plain_device"),
        ({"STUB_NO_UVM": "1"}, "plain_unarmed"),
        ({"MPSGUARD_ZONES_UVM_DEVICE": "/dev/null"}, "plain_unarmed"),
        ({"MPSGUARD_ZONES_PLAIN_CALLERS": "libother:program"}, "plain_caller"),
        ({"MPSGUARD_ZONES_LIMIT": "1M"}, "plain_unarmed"),
    ],
)
def test_plain_whenever_in_doubt(plain: Bench, environment: dict[str, str], counter: str) -> None:
    counted = plain.passes("direct", "all_plain", None, **environment)
    assert counted[counter] == 80
    assert counted["placed"] == counted["placed_small"] == 0


def test_it_looks_through_libraries_while_other_threads_load_some(plain: Bench) -> None:
    # Not under a sanitizer, which refuses RTLD_DEEPBIND.
    plain.passes("dlsym", "looks_while_others_load")


def test_switched_off_it_does_nothing(plain: Bench) -> None:
    assert plain.passes("dlsym", "all_plain", MPSGUARD_ZONES="off") == {}


def test_small_ones_can_stay_plain(plain: Bench) -> None:
    counted = plain.passes("dlsym", "leaves_all", PreloadSettings(small=Small.PLAIN))
    assert (counted["placed"], counted["placed_small"], counted["plain_small"]) == (2, 0, 1)


@pytest.mark.parametrize("scenario", ["placed", "reported", "waits", "failures"])
def test_placed_at_the_start(plain: Bench, scenario: str) -> None:
    plain.passes("dlsym", scenario, PreloadSettings(placement=Placement.START, front=0, alignment=4096))


def test_reservations_that_the_driver_does_not_map(plain: Bench) -> None:
    plain.passes("dlsym", "placed", STUB_BARE_RESERVATIONS="1")


@pytest.mark.parametrize(
    "wrong",
    [
        {"MPSGUARD_ZONES_BACK": "64MB"},
        {"MPSGUARD_ZONES_BACK": "0"},
        {"MPSGUARD_ZONES_FRONT": "-1"},
        {"MPSGUARD_ZONES_ALIGNMENT": "513"},
        {"MPSGUARD_ZONES_PLACEMENT": "middle"},
        {"MPSGUARD_ZONES_LIMIT": "99999999999999999999"},
    ],
)
def test_a_setting_that_is_not_allowed_is_counted_and_the_default_holds(plain: Bench, wrong: dict[str, str]) -> None:
    counted = plain.passes("dlsym", "overrun", None, **wrong)
    assert counted["settings_refused"] == 1


@pytest.mark.parametrize("scenario", ["second_primary", "second_context", "second_newest", "used_before"])
def test_with_two_devices_memory_is_placed_until_the_second_one_is_used(plain: Bench, scenario: str) -> None:
    for way in ("dlsym", "direct", "proc2"):
        counted = plain.passes(way, scenario, STUB_DEVICES="2")
        assert counted["plain_devices"] == 2
        assert counted["unopened"] == 0


def test_what_is_counted(plain: Bench) -> None:
    counted = plain.passes("dlsym", "leaves_all")
    assert {name: value for name, value in counted.items() if value and name != "pid"} == {
        "placed": 2,
        "placed_small": 1,
    }
    counted = plain.passes("dlsym", "ipc")
    assert (counted["ipc_exported"], counted["ipc_refused"], counted["plain_ipc"]) == (3, 1, 0)
    assert plain.passes("dlsym", "capture")["plain_capture"] == 1
    counted = plain.passes("dlsym", "elsewhere")
    assert (counted["plain_stream"], counted["ordered"], counted["ordered_reused"]) == (2, 5, 1)
    counted = plain.passes("dlsym", "pools_served")
    assert (counted["plain_pool"], counted["ordered"], counted["ordered_reused"]) == (7, 6, 1)
    assert plain.passes("dlsym", "refused")["ordered_unmarked"] == 1
    assert plain.passes("dlsym", "given_back")["ordered_released"] == 7
    assert plain.passes(f"plugin:{plain.directory}/plugin.so:deepbind:direct", "placed")["rebound"] > 0


def test_a_child_reports_nothing(plain: Bench) -> None:
    # `passes` wants one line; two children of this scenario end by exit().
    assert plain.passes("dlsym", "forks")["freed"] == 1


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_random_program(plain: Bench, seed: int) -> None:
    plain.passes("proc2", "random", SEED=str(seed))


@pytest.mark.parametrize("seed", range(101, 105))
def test_a_random_program_under_sanitizers(sanitized: Bench, seed: int) -> None:
    sanitized.passes("direct", "random", SEED=str(seed))


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_random_program_with_streams(plain: Bench, seed: int) -> None:
    assert plain.passes("proc2", "random_order", SEED=str(seed))["ordered_reused"] > 100


@pytest.mark.parametrize("seed", range(101, 105))
def test_a_random_program_with_streams_under_sanitizers(sanitized: Bench, seed: int) -> None:
    sanitized.passes("direct", "random_order", SEED=str(seed))
