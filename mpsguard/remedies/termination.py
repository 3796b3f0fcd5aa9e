"""Clean termination: the one order in which a client is ended without harm to the others of its lane.

``terminate_client SERVER PID``, its answer 0, a signal, after a grace SIGKILL, the end of the process. A client that is
signalled first, with a kernel in flight, takes the others with it (all die of error 700, 0.15 s later); after the
answer 0 they run on (both seen on an H200 with driver 580.159.04).

The process is held by pidfd throughout, and signals go through that. The vendor's command knows bare pids only: that
the process still lives is looked at right before it is asked.
"""

import asyncio
import signal
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from mpsguard.lanes.command import Command, CommandFailedError, Reply
from mpsguard.linux.process import ProcessHandle
from mpsguard.linux.procfs import printable

SEEN_WITHIN: Final = 1.0
"""Seconds in which the end of a process is waited for that was sent one signal and is to get no other."""

KILLED_WITHIN: Final = 5.0
"""Seconds in which SIGKILL is to have ended a process; one in an uninterruptible driver call takes longer."""


class Lane(Protocol):
    """What is asked of a lane; `mps.lane.Lane` is one."""

    async def clients(self) -> dict[int, int]:
        """Client pid to server pid, as listed now; raises CommandFailedError."""

    async def ask_for(self, user: Command, deadline: float | None) -> Reply:
        """Send a command; raises CommandFailedError."""


class Work(StrEnum):
    """What became of a client's GPU work."""

    ENDED = "ended"
    """The control daemon answered 0."""
    NONE = "none"
    """No server lists the process: it has no context, or has none any more."""
    GONE = "gone"
    """The process had ended by itself before it was asked for. Its kernels may run on."""
    REFUSED = "refused"
    """The control daemon answered something else than 0: it may be running on."""
    UNKNOWN = "unknown"
    """No answer in time, or nobody to ask: it may be running on, or be ended later by the command that hangs."""


class WorkEnd(msgspec.Struct, frozen=True):
    """What became of a client's GPU work, and the words for it."""

    work: Work
    server: int | None
    answer: str
    """The control daemon's own words, or why there are none; printable."""

    def in_flight(self) -> bool:
        """Whether kernels of the living process may be running: who ends it now may end its neighbours."""
        return self.work in (Work.REFUSED, Work.UNKNOWN)


class Plan(msgspec.Struct, frozen=True):
    """How to end a client; times in seconds."""

    answer_within: float
    """For the control daemon: to list its clients and to terminate this one."""
    first: signal.Signals | None = None
    """Sent once the work has ended; None leaves the process alone."""
    grace: float | None = None
    """After ``first``: how long until SIGKILL; None never sends it."""
    force: bool = False
    """Signal even if the work may still be in flight, or no server lists the process."""


class Termination(msgspec.Struct, frozen=True):
    """How far a client was ended."""

    pid: int
    end: WorkEnd
    signals: tuple[str, ...] = ()
    """Those that were sent, by name, in order."""
    ended: bool = False
    """Whether the process has ended, by whatever."""


async def terminate(lane: Lane, client: ProcessHandle, plan: Plan) -> Termination:
    """End a client as ``plan`` says. Never raises for what the daemon or the process does; the deadlines bound it.

    Cancelled, it leaves the process as it is at that moment: no signal is sent any more.
    """
    end = await end_work(lane, client, plan.answer_within)
    sent: list[str] = []
    if plan.first is not None and (end.work is Work.ENDED or plan.force):
        sent = await _end_process(client, plan.first, plan.grace)
    return Termination(client.key.pid, end, tuple(sent), not client.alive())


async def end_work(lane: Lane, client: ProcessHandle, within: float) -> WorkEnd:
    """The first half: the client's GPU work, and nothing of the process. Takes at most ``within`` seconds."""
    loop = asyncio.get_running_loop()
    due = loop.time() + within
    pid = client.key.pid
    server: int | None = None
    try:
        async with asyncio.timeout_at(due):
            server = (await lane.clients()).get(pid)
        if not client.alive():
            return WorkEnd(Work.GONE, server, "the process has ended")
        if server is None:
            return WorkEnd(Work.NONE, None, "no server lists the process")
        reply = await lane.ask_for(Command(f"terminate_client {server} {pid}"), max(due - loop.time(), 0.0))
    except CommandFailedError as error:
        return WorkEnd(Work.UNKNOWN, server, printable(str(error)))
    except TimeoutError:
        return WorkEnd(Work.UNKNOWN, server, f"the control daemon did not list its clients within {within:g} s")
    done = bool(reply.lines) and reply.lines[-1].strip() == "0"
    return WorkEnd(Work.ENDED if done else Work.REFUSED, server, printable(" / ".join(reply.lines)))


async def _end_process(client: ProcessHandle, first: signal.Signals, grace: float | None) -> list[str]:
    sent: list[str] = []
    steps = [(first, SEEN_WITHIN if grace is None else grace)]
    if first is signal.SIGKILL:
        steps = [(first, KILLED_WITHIN)]
    elif grace is not None:
        steps.append((signal.SIGKILL, KILLED_WITHIN))
    for number, wait in steps:
        if not client.alive():
            break
        try:
            client.signal(number)
        except ProcessLookupError:
            break
        sent.append(number.name)
        await client.ended(wait)
    return sent
