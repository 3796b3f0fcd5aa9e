"""Takeovers in simulation, one fault at each point; `scripts/takeover-simulation` has the thousand at random."""

import signal
import socket
from collections.abc import Iterator

import pytest

from fault_injection.takeover import model, schedule
from fault_injection.takeover.model import Request
from fault_injection.takeover.schedule import Asks, Kill, Schedule
from fault_injection.takeover.traps import Effect, Point, Trap
from fault_injection.takeover.world import World

AT_WORK = [point for point in Point if point >= Point.ACCEPTED]
"""Points that the active process comes to."""
TAKING_OVER = [Point.PROMOTED, Point.TAKEN, Point.REPUBLISHED]
STARTING = [Point.STARTED, Point.MAPPED]
FIRST = Trap(Point.PUBLISHED, 5)


@pytest.fixture(scope="module", params=[False, True], ids=["stopped", "gated"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    """Each program is stopped at the end of its turn, or its I/O fence is shut."""
    with World(gated=request.param) as started:
        yield started
        assert started.stop() == 128 + signal.SIGTERM


def asked(*traps: Trap, poison: int = -1, vault: float | None = None, kills: tuple[Kill, ...] = ()) -> Schedule:
    requests = (
        (Request("a", 40, 40), 0.0, False),
        (Request("b", 30, 40, poison), 0.01, True),
        (Request("c", 6, 70_000), 0.0, False),
        (Request("d", 6, 70_000), 0.0, True),
    )
    clients = tuple(Asks(request, after, halting) for request, after, halting in requests)
    return Schedule(clients, traps, kills, vault)


@pytest.mark.parametrize("effect", Effect, ids=lambda effect: effect.name)
@pytest.mark.parametrize("point", AT_WORK, ids=lambda point: point.name)
def test_requests_survive_the_death_of_the_active_process(world: World, point: Point, effect: Effect) -> None:
    """Killed, or fenced off without knowing it."""
    assert world.run(asked(Trap(point, 1, effect)), all_hit=True) == [f"{effect.name} {point.name}"]


@pytest.mark.parametrize("point", TAKING_OVER, ids=lambda point: point.name)
def test_requests_survive_the_death_of_the_next_one_during_its_takeover(world: World, point: Point) -> None:
    world.run(asked(FIRST, Trap(point, 1)), all_hit=True)


@pytest.mark.parametrize("point", STARTING, ids=lambda point: point.name)
def test_requests_survive_a_missing_standby(world: World, point: Point) -> None:
    """The standby dies while it starts; the one after it, as soon as it is the active one."""
    world.run(asked(FIRST, Trap(point, 1), Trap(Point.MAPPED, 1)), all_hit=True)


def test_requests_survive_two_deaths_in_a_row(world: World) -> None:
    world.run(asked(FIRST, Trap(Point.PUBLISHED, 1)), all_hit=True)
    world.run(asked(FIRST, Trap(Point.HALF_WRITTEN, 1)), all_hit=True)


@pytest.mark.parametrize("poison", [0, 17])
def test_a_poison_request_is_skipped_and_reported_and_the_others_are_answered(world: World, poison: int) -> None:
    plan = asked(poison=poison)
    before = world.traps.reached(Point.TAKEN)
    world.run(plan)
    assert world.traps.reached(Point.TAKEN) == before + 3, "it took three processes"
    (guilty,) = (each.request for each in plan.clients if each.request.poison >= 0)
    assert model.stream(guilty).endswith(model.SKIPPED)


def test_requests_survive_the_death_of_vault_and_active_process(world: World) -> None:
    world.run(asked(FIRST, vault=0.03), all_hit=True)


def test_over_ipv6_too() -> None:
    with World(family=socket.AF_INET6) as started:
        started.run(asked(FIRST, Trap(Point.HALF_WRITTEN, 1, Effect.FENCE)), all_hit=True)


def test_a_few_at_random(world: World) -> None:
    for number in range(10):
        world.run(schedule.make(20261121, number))
