"""What may happen to a session, as a machine that does anything in any order."""

import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.server import transitions
from mpsguard.vault.wire.errors import Code, LayoutMismatchError, VaultError, from_code
from mpsguard.vault.wire.region import (
    Carried,
    Grant,
    Lease,
    LeaseRole,
    RegionLayout,
    RegionRecord,
    SessionKey,
    SessionRecord,
)

OWNER, GRANTED, WRITER_TOO, STRANGER = 1, 2, 3, 4
NAMES = ("a", "b", "c")
CARRIED = Carried(0, 1, None)

tokens = st.integers(1, 8)
names = st.sampled_from(NAMES)


def new_session() -> SessionRecord:
    grants = (Grant(GRANTED), Grant(WRITER_TOO, write=True))
    return SessionRecord(SessionKey(OWNER, "s"), 1, 100, keep=10.0, grants=grants, idle_since=0.0)


class AnyOrder(RuleBasedStateMachine):
    """Whatever is asked for either changes the session in a way that keeps its rules, or raises and changes nothing."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.session = new_session()
        self.now = 0.0
        self.last_token = 0
        self.generations_of_writers: dict[int, int] = {}
        self.sealed: dict[int, set[int]] = {}

    @rule(
        target=held,
        uid=st.integers(1, 4),
        role=st.sampled_from([LeaseRole.WRITER, LeaseRole.READER, LeaseRole.STANDBY]),
    )
    def attach(self, uid: int, role: LeaseRole) -> int:
        self.last_token += 1
        lease = Lease(self.last_token, ProcessKey(uid, 0), uid, role)
        allowed = uid in (OWNER, WRITER_TOO) or (uid == GRANTED and role is LeaseRole.READER)
        free = role is not LeaseRole.WRITER or self.session.writer is None
        try:
            self.session = transitions.attach(self.session, lease)
        except VaultError:
            assert not (allowed and free)
        else:
            assert allowed
            assert free
        return self.last_token

    @rule(token=consumes(held), in_order=st.booleans())
    def end(self, token: int, in_order: bool) -> None:
        self.now += 1
        generation, orphaned = self.session.generation, self.session.orphaned
        was_writer = self.session.writer is not None and self.session.writer.token == token
        self.session = transitions.end_lease(self.session, token, self.now, CARRIED, in_order=in_order)
        assert self.session.lease(token) is None
        assert self.session.generation == generation + was_writer
        assert self.session.orphaned == (not in_order if was_writer else orphaned)

    @rule(token=held)
    def ready(self, token: int) -> None:
        lease = self.session.lease(token)
        try:
            self.session = transitions.ready(self.session, token)
        except VaultError:
            assert lease is None or lease.role in (LeaseRole.READER, LeaseRole.FENCED)
        else:
            assert lease is not None
            after = self.session.lease(token)
            assert after is not None
            assert after.ready or after.role is LeaseRole.WRITER

    @rule(token=held)
    def dismiss(self, token: int) -> None:
        lease = self.session.lease(token)
        try:
            self.session = transitions.dismiss(self.session, token)
        except VaultError:
            assert lease is None
        else:
            assert lease is not None
            after = self.session.lease(token)
            assert after is not None
            assert (after.role, after.ready) == (
                (LeaseRole.FENCED, False) if lease.role is LeaseRole.STANDBY else (lease.role, lease.ready)
            )

    @rule()
    def inherit(self) -> None:
        candidate = transitions.candidate(self.session)
        waiting = [lease for lease in self.session.readers if lease.role is LeaseRole.STANDBY and lease.ready]
        if candidate is None:
            assert not (self.session.orphaned and self.session.writer is None and waiting)
            return
        assert candidate == waiting[0]
        self.session = transitions.promote(self.session, candidate.token)
        assert transitions.candidate(self.session) is None

    @rule()
    def fence(self) -> None:
        writer, generation = self.session.writer, self.session.generation
        self.session = transitions.fence(self.session, CARRIED)
        if writer is not None:
            assert self.session.generation == generation + 1
            with pytest.raises(VaultError) as refused:
                transitions.check_writer(self.session, writer.token)
            assert refused.value.code is Code.STALE_GENERATION
            fenced = self.session.lease(writer.token)
            assert fenced is not None
            assert fenced.regions == writer.regions

    @rule(token=held)
    def promote(self, token: int) -> None:
        lease = self.session.lease(token)
        try:
            self.session = transitions.promote(self.session, token)
        except VaultError:
            return
        assert lease is not None
        assert lease.role is not LeaseRole.FENCED
        assert lease.uid in (OWNER, WRITER_TOO)

    @rule(token=held, name=names, chunks=st.integers(1, 3), at=st.none() | st.integers(0, 6))
    def add(self, token: int, name: str, chunks: int, at: int | None) -> None:
        layout = RegionLayout((4096,) * chunks, None if at is None else at * 4096)
        region = RegionRecord(name, self.last_token * 100 + len(self.session.regions), layout, self.session.generation)
        before = self.session
        try:
            self.session = transitions.add_region(self.session, token, region)
        except VaultError:
            assert self.session is before
            return
        self.must_have_been_the_writer(before, token)
        assert name not in before.regions

    @rule(token=held, name=names, expected=st.none() | st.integers(1, 3))
    def open(self, token: int, name: str, expected: int | None) -> None:
        wanted = None if expected is None else RegionLayout((4096,) * expected)
        try:
            self.session = transitions.open_region(self.session, token, name, wanted)
        except VaultError:
            return
        lease = self.session.lease(token)
        assert lease is not None
        assert name in lease.regions

    @rule(token=held, name=names)
    def close(self, token: int, name: str) -> None:
        try:
            self.session = transitions.close_region(self.session, token, name)
        except VaultError:
            return

    @rule(token=held, name=names, chunks=st.none() | st.lists(st.integers(-1, 3), max_size=2))
    def seal(self, token: int, name: str, chunks: list[int] | None) -> None:
        before = self.session
        try:
            self.session = transitions.seal(self.session, token, name, chunks)
        except VaultError:
            return
        self.must_have_been_the_writer(before, token)
        assert set(before.regions[name].sealed) <= set(self.session.regions[name].sealed)

    @rule(token=held, name=names, version=st.none() | st.integers(0, 2))
    def set_metadata(self, token: int, name: str, version: int | None) -> None:
        before = self.session
        try:
            self.session = transitions.set_metadata(self.session, token, name, b"m", version)
        except VaultError:
            return
        self.must_have_been_the_writer(before, token)
        assert not before.regions[name].is_sealed
        assert self.session.regions[name].metadata_version == before.regions[name].metadata_version + 1

    @rule(token=held, name=names)
    def release(self, token: int, name: str) -> None:
        before = self.session
        try:
            self.session = transitions.release_region(self.session, token, name)
        except VaultError:
            return
        self.must_have_been_the_writer(before, token)
        assert not any(name in lease.regions for lease in before.leases if lease.token != token)

    def must_have_been_the_writer(self, before: SessionRecord, token: int) -> None:
        assert before.writer is not None
        assert before.writer.token == token

    @invariant()
    def rules_hold(self) -> None:
        session = self.session
        assert len({lease.token for lease in session.leases}) == len(session.leases)
        assert all(lease.role is not LeaseRole.WRITER for lease in session.readers)
        assert session.writer is None or session.writer.role is LeaseRole.WRITER
        assert (session.idle_since is None) == bool(session.leases)
        assert all(name in session.regions for lease in session.leases for name in lease.regions)
        assert all(region.generation <= session.generation for region in session.regions.values())
        spans = sorted(
            (region.layout.va, region.layout.va + region.layout.size)
            for region in session.regions.values()
            if region.layout.va is not None
        )
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        # One writer a generation.
        if session.writer is not None:
            known = self.generations_of_writers.setdefault(session.generation, session.writer.token)
            assert known == session.writer.token


AnyOrder.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestAnyOrder = AnyOrder.TestCase


def test_a_session_expires_only_without_leases_and_if_it_is_not_kept_for_good() -> None:
    lease = Lease(1, ProcessKey(1, 1), OWNER, LeaseRole.WRITER)
    session = transitions.attach(new_session(), lease)
    assert transitions.expires_at(session) is None
    ended = transitions.end_lease(session, 1, 100.0, CARRIED)
    assert transitions.expires_at(ended) == 110.0
    assert transitions.expires_at(transitions.end_lease(ended, 1, 105.0, None)) == 110.0


@pytest.mark.parametrize(
    ("va", "fits"), [(0, True), (4096, False), (8192, False), (12288, False), (16384, True), (None, True)]
)
def test_addresses_do_not_overlap(va: int | None, fits: bool) -> None:
    session = transitions.attach(new_session(), Lease(1, ProcessKey(1, 1), OWNER, LeaseRole.WRITER))
    session = transitions.add_region(session, 1, RegionRecord("a", 1, RegionLayout((4096, 4096), 8192), 1))
    if fits:
        transitions.check_new_region(session, 1, "b", RegionLayout((4096, 4096), va))
    else:
        with pytest.raises(LayoutMismatchError):
            transitions.check_new_region(session, 1, "b", RegionLayout((4096, 4096), va))


def test_every_code_comes_back_as_its_exception() -> None:
    for code in Code:
        error = from_code(code.value, "why")
        assert (error.code, str(error)) == (code, "why")
    assert from_code("of a later version", "why").code is Code.UNAVAILABLE
