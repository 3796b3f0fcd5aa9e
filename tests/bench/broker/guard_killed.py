"""The guard SIGKILLed under four running clients: no client dies, and the next guard finds lane and clients again."""

import time
from collections.abc import Iterator
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.events import Outcome
from tests.bench.core.finding import Finding, all_of, none_of
from tests.bench.core.guard import Guard
from tests.bench.core.programs import Work

CLIENTS: Final = 4
WORK: Final = Work(seconds=300, controlled=True)
"""Longer than the measurement: the clients end when they are asked to."""
WAITS: Final = 1.0
"""Seconds without progress after which a client at a dead guard's sockets counts as waiting; a start takes 0.2 s."""


def measure(bench: Bench) -> Iterator[Finding]:
    """Once with the guard's own sockets, once with sockets held for it as `mpsguard.socket` does."""
    with bench.guard() as guard, Clients() as clients:
        yield from _killed(bench, guard, clients)
    with bench.guard(held_sockets=True) as guard, Clients() as clients:
        yield from _fifth(bench, guard, clients)


def _killed(bench: Bench, guard: Guard, clients: Clients) -> Iterator[Finding]:
    started = bench.workers(clients, guard, CLIENTS, WORK)
    for client in started:
        client.go()
    before, _ = guard.lane()

    guard.kill()
    killed = time.monotonic()
    alive = [client for client in started if _works(client, killed)]
    stray = clients.start(bench.programs.worker(Work(seconds=0)), guard.pipe_directory, "stray").finish()
    down = time.monotonic()
    guard.start()
    ready = time.monotonic()

    after, _ = guard.lane()
    adopted = {client.process.pid for client in guard.clients() if client.adopted}
    still = [client for client in alive if _works(client, ready)]
    for client in started:
        client.stop()
    outcomes = [client.finish() for client in started]
    died = [outcome for client, outcome in zip(started, outcomes, strict=True) if client not in still or not outcome.ok]

    yield none_of(
        "clients that die of the guard's SIGKILL",
        len(died),
        CLIENTS,
        "clients",
        runs=1,
        note="; ".join(outcome.describe() for outcome in died) or f"without held sockets: {_mode(stray)} meanwhile",
    )
    # Identity is pid and start time: a lane that was replaced under the same pid would not pass.
    same = before.control == after.control and before.servers == after.servers and after.adopted
    yield all_of(
        "lane adopted after the restart", int(same), 1, "lanes", note="" if same else f"before {before}, after {after}"
    )
    yield all_of(
        "clients adopted after the restart",
        len(adopted & {client.pid for client in started}),
        CLIENTS,
        "clients",
        note=f"the guard was ready {1000 * (ready - down):.0f} ms after its start",
    )


def _fifth(bench: Bench, guard: Guard, clients: Clients) -> Iterator[Finding]:
    started = bench.workers(clients, guard, CLIENTS, WORK)
    for client in started:
        client.go()
    _, lane = guard.lane()
    guard.kill()
    fifth = clients.start(bench.programs.worker(WORK), guard.pipe_directory, "fifth")
    waited = _waits(fifth)
    guard.start()
    fifth.wait_for("first_kernel")
    under_mps = fifth.pid in lane.all_clients()
    adopted = {client.process.pid for client in guard.clients() if client.adopted}
    for client in (*started, fifth):
        client.stop()
    outcomes = [client.finish() for client in (*started, fifth)]
    failed = [outcome for outcome in outcomes if not outcome.ok]
    yield all_of("fifth client waits while the guard is down (held sockets)", int(waited), 1, "clients")
    yield all_of(
        "fifth client runs under MPS after the restart", int(under_mps), 1, "clients", note=_mode(outcomes[-1])
    )
    yield all_of(
        "clients adopted after the restart (held sockets)",
        len(adopted & {client.pid for client in started}),
        CLIENTS,
        "clients",
    )
    yield none_of(
        "clients that die of the guard's SIGKILL (held sockets)",
        len(failed),
        CLIENTS + 1,
        "clients",
        runs=1,
        note="; ".join(outcome.describe() for outcome in failed),
    )


def _mode(outcome: Outcome) -> str:
    """What the client itself says (CU_DEVICE_ATTRIBUTE_MPS_ENABLED); the lane's client list is the proof."""
    context = outcome.find("context")
    if context is None:
        return outcome.describe()
    return f"client {outcome.label} ran {'under MPS' if context.number('mps') else 'bare'} by its device attribute"


def _works(client: Client, since: float) -> bool:
    """True once the client reported a second of work that lies wholly after `since`."""
    try:
        return client.wait_for("second", after=since + 1.0).number("iterations") > 0
    except SuiteError:
        return False


def _waits(client: Client) -> bool:
    client.wait_for("init_begin")
    try:
        client.wait_for("init_end", WAITS)
    except TimeoutError:
        return True
    return False


MEASUREMENT: Final = Measurement("guard_killed", "SIGKILL of the guard under four clients, and its restart", measure)
