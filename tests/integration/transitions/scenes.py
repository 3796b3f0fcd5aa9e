"""The scenes of sessions: each prepares, yields an operation, and checks what must hold however that ended."""

from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from mpsguard.vault.server.fd_storage.storage import buffer_name
from mpsguard.vault.wire.errors import VaultError
from mpsguard.vault.wire.region import Lease, LeaseRole, RegionLayout
from mpsguard.vault.wire.wire import Granted
from tests.integration.transitions.bench import KEY, SIZE, Bench, Member, memory
from tests.integration.transitions.interruption import Operation

Scenery = AsyncGenerator[Operation, Exception | None]
Play = Callable[[Bench], Scenery]
"""Prepares, yields the operation, gets what that raised (None also if it was cancelled), and checks."""


def attach(bench: Bench, index: int) -> tuple[Member, Operation]:
    member, handle = bench.member(index)
    lease = Lease(member.token, handle.key, KEY.uid, LeaseRole.WRITER)
    return member, bench.vault.attach(KEY, lease, handle, member.listen)


def leave(bench: Bench, member: Member) -> None:
    """End its lease, as its connection does at its end."""
    bench.vault.detach(KEY, member.token, member.listen, in_order=True)
    member.answered = False


async def attaching(bench: Bench) -> Scenery:
    member, operation = attach(bench, 0)
    failed = yield operation
    if failed is None:
        # It was granted, also if its connection was ended meanwhile.
        assert bench.vault.knows(KEY, member.token)
    leave(bench, member)
    await bench.settled()
    session = bench.vault.store.sessions.get(KEY)
    assert session is None or not session.leases
    # The next request gets its own answer.
    await bench.attach(1)


async def attaching_to_a_session(bench: Bench) -> Scenery:
    leave(bench, await bench.attach(0))
    member, operation = attach(bench, 1)
    failed = yield operation
    assert failed is not None or bench.vault.knows(KEY, member.token)
    leave(bench, member)
    await bench.attach(2)


async def attaching_as_a_standby(bench: Bench) -> Scenery:
    await bench.attach(0)
    member, handle = bench.member(1)
    lease = Lease(member.token, handle.key, KEY.uid, LeaseRole.STANDBY)
    failed = yield bench.vault.attach(KEY, lease, handle, member.listen)
    assert (failed is None) == bench.vault.knows(KEY, member.token)


async def acquiring(bench: Bench) -> Scenery:
    writer = await bench.attach(0)
    standby = await bench.attach(1, LeaseRole.STANDBY)
    leave(bench, writer)
    failed = yield bench.vault.acquire(KEY, standby.token)
    if failed is None or bench.vault.knows(KEY, standby.token):
        await bench.vault.acquire(KEY, standby.token)
    else:
        standby.answered = False
        await bench.attach(2)


async def becoming_ready(bench: Bench) -> Scenery:
    writer = await bench.attach(0)
    standby = await bench.attach(1, LeaseRole.STANDBY)
    bench.vault.fence(KEY)
    failed = yield bench.vault.ready(KEY, standby.token)
    await bench.settled()
    assert writer.told
    if failed is not None and bench.vault.knows(KEY, standby.token):
        # It asks again, as its program does.
        await bench.vault.ready(KEY, standby.token)
    assert bench.vault.store.sessions[KEY].writer is not None or not bench.vault.knows(KEY, standby.token)


async def promoting(bench: Bench) -> Scenery:
    await bench.attach(0)
    standby = await bench.standby(1)
    failed = yield bench.vault.promote(KEY, standby.token)
    await bench.settled()
    assert failed is not None or standby.heard(Granted)


async def promoting_without_a_spare(bench: Bench) -> Scenery:
    await bench.attach(0)
    standby = await bench.attach(1, LeaseRole.STANDBY)
    failed = yield bench.vault.promote(KEY, standby.token)
    assert failed is not None or standby.heard(Granted)


async def promoting_one_of_which_the_buffer_is_refused(bench: Bench) -> Scenery:
    await bench.attach(0)
    refused = await bench.attach(1, LeaseRole.STANDBY)
    session = bench.vault.store.sessions[KEY]
    bench.storage.refused = {buffer_name(session.id, session.generation + 1)}

    async def promote() -> None:
        with suppress(VaultError):
            await bench.vault.promote(KEY, refused.token)

    await bench.standby(2)
    yield promote()
    # That the next one is promoted, or told, is checked with all else.


async def creating_a_region(bench: Bench) -> Scenery:
    writer = await bench.attach(0)
    reservation = bench.vault.regions.reserve(KEY, writer.token, "r", RegionLayout((SIZE,)), b"")
    failed = yield bench.vault.regions.register(reservation, memory(1))
    assert (failed is None) == ("r" in bench.vault.store.sessions[KEY].regions)
    await bench.region(writer, "another")


async def moving(bench: Bench) -> Scenery:
    await bench.attach(0)
    standby = await bench.standby(1)
    bench.client(0, lane=0)
    bench.client(1, lane=1)
    yield bench.failover.move(bench.view)
    await bench.settled()
    (told,) = [event.data for event in bench.happened if event.kind == "takeover"]
    assert told["outcome"] != "done" or standby.heard(Granted)
    assert bench.view.lanes.active is bench.lanes[1]


async def switching_over(bench: Bench) -> Scenery:
    await bench.attach(0)
    standby = await bench.standby(1)
    bench.client(0, lane=0)
    bench.client(1, lane=0)
    yield bench.failover.switch_over(bench.view, KEY, standby.process)
    await bench.settled()
    (told,) = [event.data for event in bench.happened if event.kind == "takeover"]
    assert told["outcome"] != "done" or standby.heard(Granted)


async def resizing(bench: Bench) -> Scenery:
    await bench.attach(0)
    bench.client(0, lane=0, share=100.0)
    standby = await bench.standby(1)
    # It came with the new share, on the active lane.
    bench.client(1, lane=0, share=50.0)
    yield bench.resizing.resize(bench.vault, KEY, 50.0)
    await bench.settled()
    # The share of the program is the new one if the event says so, and else the one of before.
    resized = any(event.kind == "session_resized" for event in bench.happened)
    assert not resized or standby.heard(Granted)
    client = bench.clients.get(standby.process)
    assert client is not None
    assert bench.shares.of(client.user, client.program) == (50.0 if resized else None)


PLAYS: list[Play] = [
    attaching,
    attaching_to_a_session,
    attaching_as_a_standby,
    acquiring,
    becoming_ready,
    promoting,
    promoting_without_a_spare,
    promoting_one_of_which_the_buffer_is_refused,
    creating_a_region,
    moving,
    switching_over,
    resizing,
]
