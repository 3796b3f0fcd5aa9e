"""A guard that is told to end in the middle of something: it ends in time, and the next one starts and serves."""

import json
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from fault_injection.sim.script import Script
from mpsguard.guard.config.load import class_directory
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.guarded import Guarded
from tests.integration.peer import CLIENT, CREDENTIALS, GREETING, Peer
from tests.integration.sim.test_parking import force_fault, parked
from tests.integration.sim.test_takeover import FailoverPair, working

pytestmark = pytest.mark.slow(seconds=90, reason="two or three guards one after the other, for each moment")

PROMISED = 5.0
"""Seconds from SIGTERM to the guard's end."""
MACHINE = 5.0
"""A machine that the other tests use at the same time is slower by that."""
CROWD = 60


def logged(guarded: Guarded) -> list[dict[str, object]]:
    """The events of all guards so far."""
    whole = guarded.process.log.read_bytes().rpartition(b"\n")[0]
    return [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]


class Moments:
    """What the guard's log says from now on."""

    def __init__(self, guarded: Guarded) -> None:
        self._guarded = guarded
        self._begin = len(logged(guarded))

    def come(self, kind: str, **data: object) -> None:
        """Wait until it tells of this."""

        def told() -> bool:
            new = logged(self._guarded)[self._begin :]
            return any(event["event"] == kind and data.items() <= event.items() for event in new)

        wait_for(kind, told)


def told_to_end(guarded: Guarded, *statuses: int) -> None:
    """Send SIGTERM: the guard ends in time, in order."""
    guarded.guard.send_signal(signal.SIGTERM)
    try:
        status = guarded.guard.wait(PROMISED * MACHINE)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the guard has not ended {PROMISED * MACHINE:g} s after SIGTERM")
    assert status in (statuses or (0,))
    assert [event for event in logged(guarded) if event["event"] == "internal_error"] == []


def serves(guarded: Guarded) -> None:
    assert guarded.client("--iterations", "1").wait() == 0
    assert guarded.asked("status")


class Crowd:
    """Clients that come at once, and again until they are served."""

    def __init__(self, guarded: Guarded) -> None:
        self._guarded = guarded
        self._ends = threading.Event()
        self._lock = threading.Lock()
        self.served = 0
        self.begun = 0
        self._threads = [threading.Thread(target=self._come) for _ in range(CROWD)]
        for thread in self._threads:
            thread.start()

    def _come(self) -> None:
        while not self._ends.is_set():
            try:
                with Peer(self._guarded.public, deadline=PATIENCE) as peer:
                    with self._lock:
                        self.begun += 1
                    served = peer.connect_as_client()
            except (OSError, AssertionError):
                continue
            if served:
                with self._lock:
                    self.served += 1
                return

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded(policy="park_deadline = 600") as running:
        running.hold_sockets()
        running.start()
        running.client().expect("started")
        yield running


def hold_daemon(guarded: Guarded) -> None:
    """The daemon takes no connection: clients that were admitted wait in the middle of the relay."""
    Script(guarded.pipe).hang_accept()


def hold_answers(guarded: Guarded) -> None:
    """The daemon does not say how its lane is."""
    Script(guarded.pipe).hang("get_server_status")


ADMISSIONS: dict[str, tuple[Callable[[Guarded], None] | None, Callable[[Guarded, Crowd], bool]]] = {
    "they have come": (None, lambda _, crowd: crowd.begun > 0),
    "one is served": (None, lambda _, crowd: crowd.served > 0),
    "half are served": (None, lambda _, crowd: crowd.served >= CROWD // 2),
    "they are parked": (force_fault, lambda guarded, _: parked(guarded) > 0),
    "their daemon takes no connection": (hold_daemon, lambda _, crowd: crowd.begun >= CROWD),
    "their lane gives no answer": (hold_answers, lambda _, crowd: crowd.begun >= CROWD),
}


@pytest.mark.parametrize("moment", ADMISSIONS)
def test_while_many_clients_are_admitted(guarded: Guarded, moment: str) -> None:
    hold, reached = ADMISSIONS[moment]
    if hold is not None:
        hold(guarded)
    crowd = Crowd(guarded)
    try:
        wait_for(moment, lambda: reached(guarded, crowd))
        told_to_end(guarded)
        Script(guarded.pipe).clear()
        guarded.start()
        wait_for("all are served", lambda: crowd.served == CROWD)
    finally:
        crowd.end()
    serves(guarded)


CLASSES = [f"class-{number}" for number in range(5)]


def test_handshakes_in_progress_in_several_directories_are_waited_for_together() -> None:
    """One after the other, they would take longer than the service manager waits before it kills."""
    domain = "multiuser = true\n" + "".join(f'[[domain.class]]\nname = "{name}"\nsm_share = 50\n' for name in CLASSES)
    with Guarded(domain=domain, policy="park_deadline = 600") as guarded, ExitStack() as peers:
        guarded.start()
        guarded.client().expect("started")
        force_fault(guarded)
        public = str(guarded.public)
        for directory in (guarded.public, *(class_directory(public, name) for name in CLASSES)):
            peer = peers.enter_context(Peer(directory))
            assert peer.hear()[0] == GREETING
            peer.say_all(CREDENTIALS, CLIENT)
        wait_for("all are parked", lambda: parked(guarded) == 1 + len(CLASSES))
        told_to_end(guarded)
        Script(guarded.pipe).clear()
        guarded.start()
        serves(guarded)


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    with FailoverPair() as running:
        running.hold_sockets()
        running.start()
        yield running


PROMOTIONS: dict[str, tuple[str, dict[str, str]]] = {
    "the server has a fault": ("incident", {}),
    "the lane is in fault": ("lane_state", {"state": "FAULT"}),
    "the lanes change places": ("lanes_changed_places", {}),
    "the standby has taken over": ("takeover", {}),
    "the lane was reset": ("lane_state", {"lane": "default-0", "state": "ACTIVE", "was": "FAULT"}),
}


@pytest.mark.parametrize(
    ("moment", "stopped"), [*((each, False) for each in PROMOTIONS), ("the lanes change places", True)]
)
def test_while_a_standby_takes_over(pair: FailoverPair, moment: str, *, stopped: bool) -> None:
    """``stopped``: the standby does not answer meanwhile."""
    kind, data = PROMOTIONS[moment]
    _, second = working(pair)
    if stopped:
        second.process.send_signal(signal.SIGSTOP)
    moments = Moments(pair)
    # It says that it died later than the guard has gone on.
    pair.client("--fault", "trap")
    moments.come(kind, **data)
    told_to_end(pair)
    second.process.send_signal(signal.SIGCONT)
    pair.start()
    second.expect("went on")
    serves(pair)
    third = pair.worker("standby")
    third.expect("joined")
    pair.ready()


STARTS = ("guard_started", "privileges_dropped", "lane_adopted", "lane_settled", "client_adopted", "guard_ready")


@pytest.mark.parametrize("moment", ["", *STARTS], ids=["before a word", *STARTS])
def test_while_the_next_version_takes_over(pair: FailoverPair, moment: str) -> None:
    first, _ = working(pair)
    clients = [pair.client() for _ in range(4)]
    for client in clients:
        client.expect("started")
    told_to_end(pair)
    moments = Moments(pair)
    pair.start(ready=False)
    if moment:
        moments.come(moment)
    # Before it has taken anything over, the signal's default does no harm.
    told_to_end(pair, 0, -signal.SIGTERM)
    pair.start()
    known = {*(client.pid for client in clients), first.pid}
    wait_for("the clients", lambda: {each["process"]["pid"] for each in pair.clients()} >= known)
    assert [client.process.poll() for client in clients] == [None] * len(clients)
    pair.ready()
    serves(pair)
