"""Peers that follow no rule: whatever they send, the vault serves the others and keeps no descriptor of theirs."""

import array
import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing, suppress

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mpsguard.client import LeaseRole
from mpsguard.vault.wire import wire
from mpsguard.vault.wire.region import RegionLayout
from tests.harness.open_descriptors import Descriptors, open_descriptors, opened_since
from tests.harness.waiting import wait_for
from tests.integration.vault.running import ThreadedVault, close_chunks, memory

QUICK = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@pytest.fixture(scope="module")
def vault() -> Iterator[ThreadedVault]:
    before = open_descriptors()
    with ThreadedVault(simulated=True) as running:
        with running.session("bystander", keep=None) as bystander:
            chunk = memory(0)
            bystander.create("r", [chunk], metadata=b"untouched")
            close_chunks([chunk])
            bystander.publish(b"state")
            yield running
            # It has lost nothing, and is still served.
            assert bystander.describe("r").metadata == b"untouched"
            assert bystander.latest() == (1, 1, b"state")
        running.storage.empty()
    assert opened_since(before) == []


class Raw:
    """A connection that says what it is told to."""

    def __init__(self, path: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(20)
        self.socket.connect(path)

    def close(self) -> None:
        self.socket.close()

    def send(self, data: bytes, fds: tuple[int, ...] = ()) -> bool:
        """Whether it was sent: descriptors that were not agreed upon are refused by the kernel, where it can."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds).tobytes())] if fds else []
        try:
            # The vault may have ended the connection already.
            with suppress(BrokenPipeError, ConnectionResetError):
                self.socket.sendmsg([data], rights)
        except PermissionError:
            return False
        return True

    def hello(self, name: str = "raw", role: LeaseRole = LeaseRole.WRITER) -> None:
        self.send(wire.encode(wire.Hello(1, wire.VERSION, name, role, token=next(_tokens), keep=0.0)))
        answer, fds, _, _ = socket.recv_fds(self.socket, wire.MAX_PACKET, 4)
        assert isinstance(wire.decode_reply(answer), wire.Welcome)
        for fd in fds:
            os.close(fd)

    def answer(self) -> wire.Answer | wire.Notice | None:
        """The next thing the vault says; None at the end of the connection."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, wire.MAX_PACKET, 253)
        except ConnectionResetError:
            return None
        for fd in fds:
            os.close(fd)
        return wire.decode_reply(data) if data else None


def _count() -> Iterator[int]:
    number = 1000
    while True:
        number += 1
        yield number


_tokens = _count()


def raw_is_gone(vault: ThreadedVault) -> None:
    """Wait for the end of the session that a raw connection made."""
    wait_for(
        "the end of the session", lambda: "raw" not in vault.call(lambda: {k.name for k in vault.vault.store.sessions})
    )


def still_serves(vault: ThreadedVault) -> None:
    with vault.session("probe", keep=0.0) as probe:
        assert list(probe.names()) == []


def without_more_descriptors(vault: ThreadedVault, before: Descriptors) -> None:
    raw_is_gone(vault)
    vault.settle()
    wait_for("the end of all that was opened", lambda: not opened_since(before))


@QUICK
@given(packets=st.lists(st.binary(max_size=200), min_size=1, max_size=5), greet=st.booleans())
def test_random_bytes(vault: ThreadedVault, packets: list[bytes], greet: bool) -> None:
    with closing(Raw(vault.socket)) as raw:
        if greet:
            raw.hello()
        for packet in packets:
            raw.send(packet or b"\0")
    raw_is_gone(vault)
    still_serves(vault)


names = st.one_of(st.sampled_from(["r", "s", "bystander", ""]), st.text(max_size=200))
numbers = st.integers(-(1 << 63), (1 << 64) - 1)
values = st.one_of(
    st.none(), st.booleans(), numbers, names, st.binary(max_size=50), st.lists(numbers, max_size=4), st.floats()
)
tags = st.sampled_from(
    [
        *("hello", "create", "chunks", "seal", "metadata", "open", "describe"),
        *("close", "release", "names", "acquire", "leave", "record", "none"),
    ]
)
fields = st.sampled_from(
    [
        *("id", "v", "session", "role", "owner", "capacity", "keep", "grants", "token", "again", "name", "layout"),
        *("metadata", "count", "chunks", "expected_version", "expected", "after"),
    ]
)
layouts = st.fixed_dictionaries(
    {"sizes": st.lists(numbers, max_size=3)}, optional={"va": st.none() | numbers, "gpu": st.none() | names}
)


@QUICK
@given(
    messages=st.lists(
        st.tuples(tags, st.dictionaries(fields, values, max_size=8), st.none() | layouts, st.integers(0, 3)),
        min_size=1,
        max_size=6,
    ),
    greet=st.booleans(),
)
def test_messages_that_are_nearly_right(
    vault: ThreadedVault,
    messages: list[tuple[str, dict[str, object], dict[str, object] | None, int]],
    greet: bool,
) -> None:
    before = open_descriptors()
    chunks = [memory(n) for n in range(3)]
    with closing(Raw(vault.socket)) as raw:
        if greet:
            raw.hello()
        for tag, body, layout, fds in messages:
            message = {"t": tag, "id": 1, **body}
            if layout is not None:
                message["layout"] = layout
            raw.send(msgspec.msgpack.encode(message), tuple(chunk.fd for chunk in chunks[:fds]))
    close_chunks(chunks)
    still_serves(vault)
    without_more_descriptors(vault, before)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("create"), st.integers(0, 4)),
        st.tuples(st.just("chunks"), st.integers(0, 4)),
        st.tuples(st.just("lie"), st.integers(0, 4)),
        st.tuples(st.just("foreign"), st.integers(0, 4)),
        st.tuples(st.just("open"), st.just(0)),
        st.tuples(st.just("release"), st.just(0)),
        st.tuples(st.just("garbage"), st.just(0)),
    ),
    max_size=8,
)


@QUICK
@given(steps=steps)
def test_regions_made_by_halves(vault: ThreadedVault, steps: list[tuple[str, int]]) -> None:
    """Every order of announcing, sending, lying and leaving: a region is there as a whole, or not at all."""
    before = open_descriptors()
    chunks = [memory(n) for n in range(4)]
    read, write = os.pipe()
    with closing(Raw(vault.socket)) as raw:
        raw.hello()
        for step, count in steps:
            fds = tuple(chunk.fd for chunk in chunks[:count])
            if step == "create":
                raw.send(wire.encode(wire.Create(2, "r", RegionLayout((4096,) * count))))
            elif step == "chunks" and count:
                raw.send(wire.encode(wire.Chunks(2, count)), fds)
            elif step == "lie":
                raw.send(wire.encode(wire.Chunks(2, 3)), fds)
            elif step == "foreign" and count:
                raw.send(wire.encode(wire.Chunks(2, count)), (read,) * count)
            elif step == "open":
                raw.send(wire.encode(wire.Open(3, "r")))
            elif step == "release":
                raw.send(wire.encode(wire.Release(4, "r")))
            elif step == "garbage":
                raw.send(b"\xc1")
        # Asked in the vault's own thread, where nothing changes meanwhile: the session ends with its last connection.
        for kept, laid_out in vault.call(lambda: chunk_counts(vault)):
            assert kept == laid_out
    close_chunks(chunks)
    os.close(read)
    os.close(write)
    still_serves(vault)
    without_more_descriptors(vault, before)


def chunk_counts(vault: ThreadedVault) -> list[tuple[int, int]]:
    """Return for each region how many chunks are held, and how many its layout has."""
    store = vault.vault.store
    return [
        (len(store.session_fds[session.key].chunks.get(region.id, ())), len(region.layout.sizes))
        for session in store.sessions.values()
        for region in session.regions.values()
    ]


def test_descriptors_with_the_first_word(vault: ThreadedVault) -> None:
    before = open_descriptors()
    with closing(Raw(vault.socket)) as raw:
        chunk = memory(0)
        hello = wire.encode(wire.Hello(1, wire.VERSION, "raw", LeaseRole.WRITER, token=next(_tokens)))
        sent = raw.send(hello, (chunk.fd,) * 253)
        close_chunks([chunk])
        if sent:
            answer = raw.answer()
            assert isinstance(answer, wire.Failure)
            assert answer.code == "bad_request"
            assert raw.answer() is None
    without_more_descriptors(vault, before)


def test_a_message_of_more_than_a_packet(vault: ThreadedVault) -> None:
    with closing(Raw(vault.socket)) as raw:
        raw.hello()
        raw.send(wire.encode(wire.Create(2, "r", RegionLayout((4096,)), b"x" * 100_000)))
        answer = raw.answer()
        assert isinstance(answer, wire.Failure)
        assert answer.code == "too_large"


def test_a_client_that_dies_with_half_a_region_sent_leaves_nothing(vault: ThreadedVault) -> None:
    before = open_descriptors()
    chunks = [memory(n) for n in range(100)]
    with_chunks = open_descriptors()
    for sent in (0, 1, 99):
        with closing(Raw(vault.socket)) as raw:
            raw.hello()
            raw.send(wire.encode(wire.Create(2, "r", RegionLayout((4096,) * 100))))
            assert isinstance(raw.answer(), wire.Proceed)
            if sent:
                raw.send(wire.encode(wire.Chunks(2, sent)), tuple(chunk.fd for chunk in chunks[:sent]))
        without_more_descriptors(vault, with_chunks)
    close_chunks(chunks)
    still_serves(vault)
    without_more_descriptors(vault, before)
    used = vault.call(lambda: dict(vault.vault.store._usage))
    assert {uid: usage.regions for uid, usage in used.items()} == {os.getuid(): 1}


def test_a_peer_that_never_reads_is_let_go(vault: ThreadedVault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpsguard.vault.server.conversation.TRANSFER_DEADLINE", 0.3)
    with closing(Raw(vault.socket)) as raw:
        raw.hello()
        raw.socket.setblocking(False)

        def ended() -> bool:
            with suppress(BlockingIOError):
                for _ in range(1000):
                    raw.send(wire.encode(wire.Names(2)))
            return vault.vault.tally.connections == 1

        wait_for("the end of its connection", ended)
    still_serves(vault)


def test_a_peer_with_many_questions_takes_turns_with_others(vault: ThreadedVault) -> None:
    questions = 100
    with closing(Raw(vault.socket)) as raw:
        raw.hello()
        raw.socket.setblocking(False)
        refusals = vault.vault.tally.refusals

        async def turns_of_others() -> int:
            before = refusals.get("unknown_region", 0)
            # On the vault's own loop, so that all of them are there before the first is answered.
            for number in range(questions):
                raw.send(wire.encode(wire.Describe(number, "none")))
            turns = 0
            while refusals.get("unknown_region", 0) < before + questions:
                await asyncio.sleep(0)
                turns += 1
            return turns

        assert vault.run(turns_of_others()) >= questions


def test_a_peer_that_says_nothing_is_let_go(vault: ThreadedVault, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mpsguard.vault.server.conversation.GREETING_DEADLINE", 0.1)
    with closing(Raw(vault.socket)) as raw:
        assert raw.answer() is None
