"""The log of events: a user that causes events without end has a share of its lines, and listeners are told of all."""

from collections import Counter

from structlog.testing import capture_logs

from mpsguard.guard.control_api.event_stream import LINES_OF_A_USER, LINES_WINDOW, EventStream
from mpsguard.guard.control_api.protocol import Event
from mpsguard.linux.identity import ROOT

STORM, OTHER = 65534, 65533


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def cause(stream: EventStream, user: int, count: int) -> None:
    for _ in range(count):
        stream.publish("client_connected", "default", user=user, uid=user)


def test_a_storm_of_one_user_leaves_the_log_to_the_others() -> None:
    clock = Clock()
    with capture_logs() as lines:
        stream = EventStream(clock)
        heard: list[Event] = []
        stream.listen(heard.append)
        cause(stream, STORM, 5 * LINES_OF_A_USER)
        cause(stream, OTHER, 100)
        cause(stream, ROOT, 2 * LINES_OF_A_USER)
    logged = Counter((line["event"], line["uid"]) for line in lines)
    assert logged == {
        ("client_connected", STORM): LINES_OF_A_USER,
        ("events_left_out", STORM): 1,
        ("client_connected", OTHER): 100,
        ("client_connected", ROOT): 2 * LINES_OF_A_USER,
    }
    assert Counter(event.kind for event in heard) == {
        "client_connected": 7 * LINES_OF_A_USER + 100,
        "events_left_out": 1,
    }
    assert [event.seq for event in heard] == list(range(1, len(heard) + 1))


def test_the_log_says_how_much_it_lacks_once_the_user_is_logged_again() -> None:
    clock = Clock()
    with capture_logs() as lines:
        stream = EventStream(clock)
        cause(stream, STORM, LINES_OF_A_USER + 7)
        clock.now += LINES_WINDOW / 4
        cause(stream, STORM, 3)
        clock.now += LINES_WINDOW / 4 + 1
        cause(stream, STORM, 1)
    assert [line["event"] for line in lines[LINES_OF_A_USER:]] == [
        "events_left_out",
        "events_left_out",
        "client_connected",
    ]
    assert lines[-2]["count"] == 10


def test_a_storm_that_goes_on_has_a_bounded_number_of_lines() -> None:
    clock = Clock()
    with capture_logs() as lines:
        stream = EventStream(clock)
        for _ in range(400):
            cause(stream, STORM, 50)
            clock.now += 1.0
    assert len(lines) <= LINES_OF_A_USER * (1 + 400 / LINES_WINDOW) * 1.01
