"""Whether a lane serves its clients: a pure function of what they got of it.

What the control daemon says of itself is no proof: that of 550.163 answers every command while each of its servers
ends at its start (NVIDIA/k8s-device-plugin #1614, #685), and lists one that never comes up as INITIALIZING for good.

Each failure is charged to the users that may have caused it: without ``-M`` a server is a process of its user's, which
may kill it or have no right to the GPUs; and a client may crash a server that it has, with all others of that server.
Therefore a lane is only said to fail

* by failures that no stranger can cause: those of root, of the guard's own user, of any user where servers are root's
  and have not come up;
* or by such that no single user can have caused: those of two users;
* or by those of one user, if its servers ended by themselves each time (not by a signal, which has status 0 in
  control.log) and the GPUs' device nodes are open to it, or if they do not come up; and no client of others has been
  served for ten minutes.

Any other failures are a doubt, which drains no node.
"""

from collections.abc import Collection
from typing import Final

import msgspec

ENOUGH: Final = 2
"""Weight of failures in a row from which on they count."""

TURNED_AWAY: Final = 2
"""Weight of a client that the control daemon hung up on: it has tried to start a server six times (535, 550)."""

LOST: Final = 1
"""Weight of a server that ended young, with clients."""

REFUSED: Final = 1
"""Weight of a client that its server did not accept."""

YOUNG: Final = 5.0
"""Seconds of a server's life. One that has reached this age with a client has served."""

WAITED: Final = 8.0
"""Seconds without a server, or without an answer, from which on a client is not served. A server starts in 0.3 s
(H200), the daemon answers in milliseconds."""

STOPPED: Final = 3.0
"""Seconds that a server may be stopped, as by a debugger that attaches."""

STANDS: Final = 60.0
"""Seconds for which failures say something of the present: for each in a row."""

STANDS_AT_MOST: Final = 600.0
"""Likewise, for all of them together. Then nothing is known but that no client has come."""

USERS: Final = 16
"""Users that failures are charged to, at most; two are enough for a verdict."""

_NAMED_MOST: Final = 4
"""Users that a reason names at most."""

_MOST: Final = 1000
"""Failures that are counted up to."""


class Failures(msgspec.Struct, frozen=True):
    """The failures of a lane since a client was last served."""

    weights: dict[int, int] = {}
    """Weight of those that a user may have caused, by user."""
    weight: int = 0
    """Of all of them."""
    count: int = 0
    last: float = 0.0
    """When the last one was, on the monotonic clock, as all times here."""
    words: str = ""
    """What the daemons' logs said at the last one, without control characters."""
    by_itself: bool = False
    """Whether at each of them a server ended by itself, for a user that may open the GPUs' device nodes."""

    def with_one(
        self, suspects: Collection[int], weight: int, now: float, words: str, *, by_itself: bool = False
    ) -> "Failures":
        """Return these and one more, which each of ``suspects`` may have caused; ``by_itself`` as above."""
        weights = dict(self.weights)
        for user in suspects:
            if user in weights or len(weights) < USERS:
                weights[user] = weights.get(user, 0) + weight
        by_itself = by_itself and (self.by_itself or not self.count)
        return Failures(weights, self.weight + weight, min(self.count + 1, _MOST), now, words, by_itself)

    def suspects(self) -> tuple[int, ...]:
        """Return the users of which each may have caused all of these, or all but too few to count."""
        return tuple(user for user, weight in self.weights.items() if self.weight - weight < ENOUGH)

    def stands_until(self) -> float:
        """Return until when they count, if nothing follows."""
        return self.last + min(STANDS * self.count, STANDS_AT_MOST)


class ServiceRecord(msgspec.Struct, frozen=True):
    """What is known of a lane's service, since its control daemon began."""

    turned_away: Failures = Failures()
    """Clients that the control daemon hung up on; forgotten when it hands one over."""
    lost: Failures = Failures()
    """Servers that ended young and with clients; forgotten when one has served."""
    refused: Failures = Failures()
    """Clients that a server did not accept; forgotten when it accepts one."""
    waiting_since: float | None = None
    """When the oldest client came that waits for a server, and for none of another user's."""
    waiting_by: frozenset[int] = frozenset()
    """Users of which each may cause that: the one that waits, and the owners of servers that come up."""
    unanswered_since: float | None = None
    """When the oldest question was asked that the control daemon has not answered, if it has answered none since."""
    stopped_since: float | None = None
    """When a server was first seen stopped."""
    stopped_by: frozenset[int] = frozenset()
    """Users that may have stopped one of theirs."""
    handed_over: float | None = None
    """When a client last got a socket to a server."""
    served: float | None = None
    """When a server last was seen to serve."""


class NotServed(msgspec.Struct, frozen=True):
    """That clients are not served, and why."""

    reason: str
    proven: bool
    """Whether no single user could have caused it to others' harm alone."""


def verdict(record: ServiceRecord, now: float) -> NotServed | None:
    """Return that clients of a lane are not served; None if nothing says so, as where none has come."""
    # First, as a daemon waits for a server that is stopped.
    if record.stopped_since is not None and now - record.stopped_since >= STOPPED:
        return NotServed(f"its server is stopped{_named(record.stopped_by)}", not record.stopped_by)
    unanswered = _since(record.unanswered_since, record.handed_over, now)
    if unanswered >= WAITED:
        return NotServed(f"the control daemon has not answered for {unanswered:.0f} s", True)
    for failures, what in (
        (record.turned_away, "clients were turned away"),
        (record.lost, "servers ended young, with clients"),
        (record.refused, "clients were refused by their server"),
    ):
        found = _of_failures(failures, what, now, record.served)
        if found is not None:
            return found
    waiting = _since(record.waiting_since, record.handed_over, now)
    if waiting >= WAITED:
        proven = not record.waiting_by or not _served_within(record.served, STANDS_AT_MOST, now)
        return NotServed(f"clients have waited for a server for {waiting:.0f} s{_named(record.waiting_by)}", proven)
    return None


def _since(began: float | None, not_before: float | None, now: float) -> float:
    """Return for how long something has lasted, which a client that was handed over interrupts; 0 if it does not."""
    return 0.0 if began is None else now - max(began, not_before or began)


def _of_failures(failures: Failures, what: str, now: float, served: float | None) -> NotServed | None:
    if failures.weight < ENOUGH or now >= failures.stands_until():
        return None
    # The words first: a probe's line has no room for all.
    words = f"{failures.words}; " if failures.words else ""
    suspects = failures.suspects()
    if not suspects:
        return NotServed(f"{words}{what}, {failures.count} in a row", True)
    if _served_within(served, STANDS, now):
        # Others are served: it is these users' own affair.
        return None
    proven = failures.by_itself and not _served_within(served, STANDS_AT_MOST, now)
    return NotServed(f"{words}{what}, {failures.count} in a row, all{_named(suspects)}", proven)


def _served_within(served: float | None, seconds: float, now: float) -> bool:
    return served is not None and now - served < seconds


def _named(suspects: Collection[int]) -> str:
    return f" of user {' or '.join(map(str, sorted(suspects)[:_NAMED_MOST]))}" if suspects else ""
