"""Each operation, cut short at each of its awaits, and with each of its system calls failing once."""

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Final

import pytest

from mpsguard.guard.daemon.guard import GuardStartError
from mpsguard.guard.incidents.live_resize import ResizeError
from mpsguard.guard.lanes.levers import LeverError
from mpsguard.images.pool.errors import PoolError
from mpsguard.vault.wire.errors import VaultError
from tests.integration.transitions import (
    faults,
    guard_scenes,
    interruption,
    other_scenes,
    pool_scenes,
    scenes,
    upgrade_scenes,
)
from tests.integration.transitions.bench import Stage
from tests.integration.transitions.guard_scenes import House
from tests.integration.transitions.interruption import Performance, Scene
from tests.integration.transitions.manager import Manager
from tests.integration.transitions.other_scenes import Place
from tests.integration.transitions.scenes import Scenery
from tests.integration.transitions.upgrade_scenes import Service


@asynccontextmanager
async def performed(playing: Scenery) -> AsyncIterator[Performance]:
    async with aclosing(playing):
        yield (performance := Performance(await anext(playing)))
        with suppress(StopAsyncIteration):
            _ = await playing.asend(performance.error)


def on_a_bench(play: scenes.Play) -> Callable[[Stage], Scene]:
    """Return how a scene of sessions is played."""

    def prepared(stage: Stage) -> Scene:
        @asynccontextmanager
        async def scene() -> AsyncIterator[Performance]:
            async with stage.bench() as bench, performed(play(bench)) as performance:
                yield performance

        return scene

    return prepared


def elsewhere(play: other_scenes.Play) -> Callable[[Stage], Scene]:
    """Return how a scene without sessions is played."""

    def prepared(stage: Stage) -> Scene:
        @asynccontextmanager
        async def scene() -> AsyncIterator[Performance]:
            async with stage.place() as root:
                manager = Manager(root / "notify")
                try:
                    async with performed(play(Place(root, stage.processes[0].pid, manager))) as performance:
                        yield performance
                finally:
                    manager.close()

        return scene

    return prepared


def in_a_house(play: guard_scenes.Play) -> Callable[[Stage], Scene]:
    """Return how a scene of a whole guard is played."""

    def prepared(stage: Stage) -> Scene:
        @asynccontextmanager
        async def scene() -> AsyncIterator[Performance]:
            async with stage.place() as root, performed(play(House(root))) as performance:
                yield performance

        return scene

    return prepared


def in_service(play: upgrade_scenes.Play) -> Callable[[Stage], Scene]:
    """Return how a scene of guards that follow each other is played."""

    def prepared(stage: Stage) -> Scene:
        @asynccontextmanager
        async def scene() -> AsyncIterator[Performance]:
            async with stage.place() as root:
                manager = Manager(root / "notify")
                try:
                    with manager.in_place():
                        service = Service(root, manager, stage.processes[0].pid)
                        async with performed(play(service)) as performance:
                            yield performance
                finally:
                    manager.close()

        return scene

    return prepared


SCENES: Final = {play.__name__: on_a_bench(play) for play in scenes.PLAYS}
OTHER_SCENES: Final = {play.__name__: elsewhere(play) for play in (*other_scenes.PLAYS, *pool_scenes.PLAYS)}
GUARD_SCENES: Final = {play.__name__: in_a_house(play) for play in guard_scenes.PLAYS}

UPGRADES: Final = {play.__name__: in_service(play) for play in upgrade_scenes.PLAYS}

Record = Callable[[str, object], None]
Prepared = Callable[[Stage], Scene]


def cancel(stage: Stage, prepared: Prepared, record_property: Record) -> None:
    points = interruption.sweep(prepared(stage))
    assert points
    record_property("cancellations", points)


@pytest.mark.parametrize("prepared", SCENES.values(), ids=SCENES)
def test_a_cancellation_leaves_no_mess(stage: Stage, prepared: Prepared, record_property: Record) -> None:
    cancel(stage, prepared, record_property)


@pytest.mark.slow(seconds=35, reason="starts a holder, or processes that read, for each point")
@pytest.mark.parametrize("prepared", OTHER_SCENES.values(), ids=OTHER_SCENES)
def test_a_cancellation_leaves_no_mess_elsewhere(stage: Stage, prepared: Prepared, record_property: Record) -> None:
    cancel(stage, prepared, record_property)


@pytest.mark.slow(seconds=60, reason="a guard, and its successor, for each point")
@pytest.mark.parametrize("prepared", GUARD_SCENES.values(), ids=GUARD_SCENES)
def test_a_cancellation_leaves_no_mess_of_a_guard(stage: Stage, prepared: Prepared, record_property: Record) -> None:
    cancel(stage, prepared, record_property)


@pytest.mark.soak  # three guards for each point
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("prepared", UPGRADES.values(), ids=UPGRADES)
def test_a_cancellation_leaves_no_mess_of_an_upgrade(stage: Stage, prepared: Prepared, record_property: Record) -> None:
    cancel(stage, prepared, record_property)


@pytest.mark.soak  # three guards for each point
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("prepared", UPGRADES.values(), ids=UPGRADES)
def test_an_error_of_the_kernel_leaves_no_mess_of_an_upgrade(
    stage: Stage, prepared: Prepared, record_property: Record
) -> None:
    # The guard ends, and its service begins the next one.
    record_property("failures", faults.sweep_ways(prepared(stage), (GuardStartError, OSError)))


@pytest.mark.slow(seconds=45, reason="a promotion for which there was no memory is tried again a second later")
@pytest.mark.parametrize("prepared", SCENES.values(), ids=SCENES)
def test_an_error_of_the_kernel_leaves_no_mess(stage: Stage, prepared: Prepared, record_property: Record) -> None:
    record_property("failures", faults.sweep(prepared(stage), (VaultError, ResizeError)))


@pytest.mark.slow(seconds=15, reason="starts a holder, or processes that read, for each point")
@pytest.mark.parametrize("prepared", OTHER_SCENES.values(), ids=OTHER_SCENES)
def test_an_error_of_the_kernel_leaves_no_mess_elsewhere(
    stage: Stage, prepared: Prepared, record_property: Record
) -> None:
    expected = (VaultError, LeverError, PoolError, OSError)
    record_property("failures", faults.sweep(prepared(stage), expected))
