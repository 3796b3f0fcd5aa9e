"""What is gathered of a lane's clients and servers, and to which user each failure is charged."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from mpsguard.guard.lanes import service
from mpsguard.guard.lanes.service_watch import ServiceWatch
from mpsguard.guard.model import Server
from mpsguard.linux.identity import CONTAINER_ROOT, Credentials, ProcessKey, UserKey
from mpsguard.linux.nvidia import nvidia_gpus
from mpsguard.linux.processes import procfs

NOW = 1000.0
STRANGER, OTHER = 65534, 65533


class Lane:
    """The logs of a lane, and what is gathered there."""

    def __init__(self, root: Path, *, multiuser: bool = False) -> None:
        self.logs = root
        for name in ("control.log", "server.log"):
            (root / name).touch()
        self.lost: list[dict[str, Any]] = []
        self.watch = ServiceWatch(root, lambda _, data: self.lost.append(dict(data)), lambda: None, multiuser=multiuser)
        self.watch.begin()

    def says(self, name: str, text: str) -> None:
        who = "Control" if name == "control.log" else "Server "
        with (self.logs / name).open("a") as log:
            log.write(f"[2026-11-20 14:01:28.554 {who}   479] {text}\n")

    def turns_away(self, client: Credentials, *, counts: bool = True) -> None:
        with self.watch.attempt(client, NOW, counts=counts) as attempt:
            attempt.turned_away()

    def hands_over(self, client: Credentials) -> None:
        with self.watch.attempt(client, NOW) as attempt:
            attempt.handed_over()

    def waiting_since(self) -> float | None:
        return self.watch.record.waiting_since

    def loses(self, server: int, client: Credentials) -> None:
        """A server that comes, gets a client, and ends with status 1."""
        self.watch.look([server_of(server)])
        self.hands_over(client)
        self.says("control.log", f"Server {server} exited with status 1")
        self.watch.server_ended(server)
        self.watch.look([])


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    return Lane(tmp_path)


def server_of(pid: int, state: str = "ACTIVE") -> Server:
    return Server(ProcessKey(pid, 1), state)


def client_of(user: int, pid: int = 0x3FFFFF) -> Credentials:
    """A client that has ended, or never was; ``user``: root of a container has uid 0."""
    return Credentials(pid, 0 if user >= CONTAINER_ROOT else user, 0, UserKey(user) if user >= CONTAINER_ROOT else None)


def charged(lane: Lane) -> set[int | None]:
    record = lane.watch.record
    failed = [each for each in (record.turned_away, record.lost, record.refused) if each.count]
    return {user for each in failed for user in each.weights or (None,)}


@pytest.mark.parametrize(
    ("user", "multiuser", "to"),
    [
        (0, False, None),
        (STRANGER, False, STRANGER),
        # Its server is root's: it cannot touch that before it is up.
        (STRANGER, True, None),
        (CONTAINER_ROOT + 7, False, None),
    ],
)
def test_who_may_have_caused_a_server_not_to_start(tmp_path: Path, user: int, multiuser: bool, to: int | None) -> None:
    lane = Lane(tmp_path, multiuser=multiuser)
    lane.turns_away(client_of(user))
    assert charged(lane) == {to}


@pytest.mark.parametrize("status", [0, 1])
def test_a_server_that_was_killed_is_told_from_one_that_ended_by_itself(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setattr(nvidia_gpus, "open_to", lambda *_: True)
    with lane.watch.attempt(client_of(STRANGER), 0.0) as attempt:
        lane.says("control.log", f"Server 100 exited with status {status}")
        attempt.turned_away()
    found = lane.watch.verdict()
    assert found is not None
    assert found.proven is bool(status)


def test_servers_of_a_user_without_a_right_to_the_gpus_end_for_that_user_alone(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvidia_gpus, "open_to", lambda *_: False)
    with lane.watch.attempt(client_of(STRANGER), 0.0) as attempt:
        lane.says("control.log", "Server 100 exited with status 1")
        attempt.turned_away()
    found = lane.watch.verdict()
    assert found is not None
    assert not found.proven


def test_the_guards_own_user_is_no_stranger(lane: Lane) -> None:
    lane.turns_away(client_of(os.geteuid()))
    assert charged(lane) == {None}


def test_a_peer_that_is_no_client_is_hung_up_on_for_other_reasons(lane: Lane) -> None:
    lane.turns_away(client_of(0), counts=False)
    assert charged(lane) == set()


def test_a_client_that_is_handed_over_clears_those_that_were_turned_away(lane: Lane) -> None:
    lane.turns_away(client_of(0))
    assert lane.watch.verdict() is not None
    lane.hands_over(client_of(STRANGER))
    assert lane.watch.verdict() is None


def test_servers_that_end_young_with_clients_are_counted_once_each(lane: Lane) -> None:
    lane.loses(100, client_of(0))
    lane.watch.server_ended(100)
    assert lane.watch.verdict() is None
    lane.loses(101, client_of(0))
    found = lane.watch.verdict()
    assert found is not None
    assert found.proven
    assert found.reason.startswith("Server 101 exited with status 1")
    assert [each["server"] for each in lane.lost] == [100, 101]


def test_a_server_that_was_never_listed_counts_by_what_the_control_daemon_says(lane: Lane) -> None:
    for server in (100, 101):
        lane.hands_over(client_of(0))
        lane.says("control.log", f"Server {server} exited with status 1")
        lane.watch.look([])
    assert lane.watch.verdict() is not None


def test_a_stranger_that_crashes_its_server_again_and_again_is_a_doubt(tmp_path: Path) -> None:
    lane = Lane(tmp_path, multiuser=True)
    for server in range(100, 120):
        lane.loses(server, client_of(STRANGER))
    found = lane.watch.verdict()
    assert found is not None
    assert not found.proven
    for server in range(120, 122):
        lane.loses(server, client_of(OTHER))
    found = lane.watch.verdict()
    assert found is not None
    assert found.proven


@pytest.mark.parametrize("bystander", [OTHER, 0])
def test_a_stranger_that_crashes_a_server_that_others_have_too_is_a_doubt(tmp_path: Path, bystander: int) -> None:
    lane = Lane(tmp_path, multiuser=True)
    for server in range(100, 120):
        lane.watch.look([server_of(server)])
        lane.hands_over(client_of(bystander, 0x3FFFFE))
        lane.loses(server, client_of(STRANGER))
    found = lane.watch.verdict()
    assert found is not None
    assert not found.proven


@pytest.mark.parametrize("status", [0, None])
def test_a_server_that_leaves_in_order_is_not_lost(lane: Lane, status: int | None) -> None:
    """As for another user's: by then its clients have ended. A signal has status 0 in that log, too."""
    for server in range(100, 110):
        lane.watch.look([server_of(server)])
        lane.hands_over(client_of(0))
        if status is not None:
            lane.says("control.log", f"Server {server} exited with status {status}")
        lane.watch.server_ended(server)
    assert lane.watch.verdict() is None


def test_a_server_that_ends_while_its_client_lives_is_lost(lane: Lane) -> None:
    for server in (100, 101):
        lane.watch.look([server_of(server)])
        lane.hands_over(client_of(0, os.getpid()))
        lane.watch.server_ended(server)
    found = lane.watch.verdict()
    assert found is not None
    assert found.proven


@pytest.mark.parametrize("told_late", [True, False])
def test_a_client_that_has_just_ended_still_counts_for_its_servers_end(
    lane: Lane, monkeypatch: pytest.MonkeyPatch, told_late: bool
) -> None:
    """A client that loses its server ends itself; which end is told first is chance."""
    if not told_late:
        monkeypatch.setattr(service, "YOUNG", 0.0)

    async def scenario() -> None:
        lane.watch.look([server_of(100)])
        lane.hands_over(client_of(0))
        lane.watch.client_left(client_of(0).pid)
        # A timer that is due in no time is due in the next pass of the loop, the one behind it in the one after.
        for _ in range(3):
            await asyncio.sleep(0)
        monkeypatch.setattr(service, "YOUNG", 60.0)
        lane.says("control.log", "Server 100 exited with status 1")
        lane.watch.look([])

    asyncio.run(scenario())
    assert bool(lane.lost) is told_late


def test_a_server_that_ends_in_a_fault_is_a_matter_of_the_fault(lane: Lane) -> None:
    for server in (100, 101):
        lane.watch.look([server_of(server)])
        lane.hands_over(client_of(0, os.getpid()))
        lane.watch.look([server_of(server, "FAULT")])
        lane.watch.server_ended(server)
    assert lane.lost == []
    assert lane.watch.verdict() is None


def test_a_server_of_age_that_ends_is_not_young(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "YOUNG", 0.0)
    for server in (100, 101):
        lane.loses(server, client_of(0))
    assert lane.watch.verdict() is None


def test_a_server_that_grew_old_with_a_client_has_served(lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    for server in (100, 101):
        lane.loses(server, client_of(0))
    monkeypatch.setattr(service, "YOUNG", 0.0)
    lane.watch.look([server_of(102)])
    assert lane.watch.verdict() is not None, "no client has been on it"
    lane.hands_over(client_of(STRANGER))
    lane.watch.look([server_of(102)])
    assert lane.watch.verdict() is None


def test_the_words_of_a_server_are_shown_without_control_characters_and_cut(lane: Lane) -> None:
    lane.says("server.log", "Failed to start : \x1b]0;evil\x07" + "x" * 1000)
    lane.turns_away(client_of(0))
    found = lane.watch.verdict()
    assert found is not None
    assert found.reason.isprintable()
    assert "Failed to start" in found.reason
    assert len(found.reason) < 300


@pytest.mark.parametrize("believed", [False, True])
def test_the_logs_count_for_nothing_once_a_stranger_has_had_a_server_that_writes_them(
    lane: Lane, believed: bool
) -> None:
    """It may have kept the server's descriptor of the FIFO by which all processes of a lane write both logs."""
    if not believed:
        lane.hands_over(client_of(STRANGER))
        lane.watch.server_ended(1)
    for server in (100, 101):
        lane.watch.look([server_of(server)])
        lane.hands_over(client_of(0, 700))
        lane.says("server.log", "Failed to accept client {PID: 700, Context ID: 1} with status 999")
        lane.says("control.log", f"Server {server} exited with status 1")
        lane.watch.look([])
        lane.watch.server_ended(server)
    assert (lane.watch.verdict() is not None) is believed
    assert charged(lane) == ({None} if believed else set())


def test_the_logs_of_a_lane_that_was_found_may_be_anyones(tmp_path: Path) -> None:
    for multiuser in (False, True):
        lane = Lane(tmp_path, multiuser=multiuser)
        lane.watch.begin(adopted=True)
        for server in (100, 101):
            lane.loses(server, client_of(0))
        assert (lane.watch.verdict() is not None) is multiuser


@pytest.mark.parametrize(("status", "expected"), [(999, True), (807, None), (808, None), (809, None)])
def test_a_server_that_accepts_no_client_is_told_from_one_at_its_limits(
    lane: Lane, status: int, expected: bool | None
) -> None:
    for pid in (700, 701):
        lane.hands_over(client_of(0, pid))
        lane.says("server.log", f"Failed to accept client {{PID: {pid}, Context ID: 0}} with status {status}")
        lane.watch.look([server_of(479)])
    found = lane.watch.verdict()
    assert (None if found is None else found.proven) is expected
    lane.says("server.log", "Client {PID: 702, Context ID: 0} connected")
    lane.watch.look([server_of(479)])
    assert lane.watch.verdict() is None


def test_a_question_is_open_from_its_beginning_until_there_is_an_answer_or_a_client_handed_over(lane: Lane) -> None:
    """However long its own deadline is."""

    def since() -> float | None:
        return lane.watch.record.unanswered_since

    lane.watch.asked()
    first = since()
    lane.watch.asked()
    assert first is not None
    assert since() == first
    lane.hands_over(client_of(STRANGER))
    assert since() is None
    lane.watch.asked()
    lane.watch.answered()
    assert since() is None


def test_a_client_that_waits_for_another_users_server_to_leave_is_no_sign(lane: Lane) -> None:
    """A server is one user's without -M; this process stands for it."""
    other = client_of(os.getuid() + 1)
    with lane.watch.attempt(other, 0.0):
        lane.watch.look([server_of(os.getpid())])
        assert lane.waiting_since() is None
        lane.watch.look([server_of(os.getpid(), "INITIALIZING")])
        assert lane.waiting_since() is not None
    with lane.watch.attempt(client_of(os.getuid()), 0.0):
        lane.watch.look([server_of(os.getpid())])
        assert lane.waiting_since() is not None


@pytest.mark.parametrize("multiuser", [False, True])
def test_a_wait_or_a_stopped_server_is_charged_to_the_servers_user_and_to_the_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, multiuser: bool
) -> None:
    """This process stands for the server; its user for a stranger's."""
    lane = Lane(tmp_path, multiuser=multiuser)
    monkeypatch.setattr(procfs, "state", lambda _: "T")
    monkeypatch.setattr(procfs, "uid", lambda _: (STRANGER, STRANGER))
    with lane.watch.attempt(client_of(STRANGER), 0.0):
        lane.watch.look([server_of(os.getpid(), "INITIALIZING")])
        charged = frozenset() if multiuser else frozenset({STRANGER})
        assert (lane.watch.record.stopped_by, lane.watch.record.waiting_by) == (charged, charged)
        # Root waits too, for the same server of the stranger's.
        with lane.watch.attempt(client_of(0), 0.0):
            lane.watch.look([server_of(os.getpid(), "INITIALIZING")])
            assert lane.watch.record.waiting_by == charged
    monkeypatch.setattr(procfs, "uid", lambda _: (0, 0))
    with lane.watch.attempt(client_of(STRANGER), 0.0), lane.watch.attempt(client_of(OTHER), 0.0):
        lane.watch.look([server_of(os.getpid(), "INITIALIZING")])
        assert lane.watch.record.waiting_by == frozenset(), "of two users"
        assert lane.watch.record.stopped_by == frozenset()


def test_waiting_out_a_fault_or_a_restart_of_the_daemon_is_no_sign(lane: Lane) -> None:
    with lane.watch.attempt(client_of(0), 0.0):
        lane.watch.look([])
        began = lane.waiting_since()
        assert began is not None
        assert began > 0.0, "the daemon has only just begun"
        lane.watch.look([server_of(479, "FAULT")])
        after = lane.waiting_since()
        assert after is not None
        assert after > began
