"""Clean termination: the only order of steps that ends a client without harm to the others of its lane.

``terminate_client SERVER PID``, its answer 0, a signal, SIGKILL after a grace period, the end of the process. If a
client with a kernel in flight is signalled first, the others fail too (error 700, 0.15 s later); after the answer 0
they continue (both seen on an H200 with driver 580.159.04).

A process that is stopped (SIGSTOP, a debugger) is left out of the first step: the server asks the client itself to let
go of its context, and waits for it with all its other clients (seen there: their kernels stood still for 3 s, until the
process was killed). If it is to end, it is killed at once: its lifeline keeps what its kernels need.

A client with a second driver may have work on two lanes: it is ended on each, and the process is signalled when neither
has any. A kernel that ran on the other lane would end the clients there.

The process is held by a pidfd throughout, and signalled through it. The vendor's command takes bare pids only, so it is
checked right before the command that the process still lives.
"""

import asyncio
import signal
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.guard.model import KILLED_WITHIN, SEEN_WITHIN, Work
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.procfs import printable
from mpsguard.linux.tasks import beside


class TerminationLane(Protocol):
    """The part of `mpsguard.guard.lanes.lane.Lane` that termination needs."""

    async def clients(self) -> dict[int, int]:
        """Return server pid by client pid, as listed now; raises CommandFailedError."""

    async def ask_for(self, user: Command, deadline: float | None) -> CommandReply:
        """Send a command; raises CommandFailedError."""


class WorkEnd(msgspec.Struct, frozen=True):
    """The result of an attempt to end a client's GPU work."""

    work: Work
    server: int | None
    answer: str
    """The control daemon's answer, or why there is none; printable."""


class TerminationPlan(msgspec.Struct, frozen=True):
    """How to end a client; times in seconds."""

    answer_within: float
    """Time for the control daemon to list its clients and to terminate this one."""
    first: signal.Signals | None = None
    """Sent after the work has ended; with None the process gets no signal."""
    grace: float | None = None
    """Time from ``first`` to SIGKILL; with None, no SIGKILL is sent. A stopped process cannot use it, and has none."""
    force: bool = False
    """Signal even if the work may still be in flight, or no server lists the process."""

    def kills(self) -> bool:
        """Return whether the process is to end in any case."""
        return self.first is signal.SIGKILL or self.grace is not None


class Termination(msgspec.Struct, frozen=True):
    """The result of a termination."""

    pid: int
    end: WorkEnd
    signals: tuple[str, ...] = ()
    """Names of the signals that were sent, in order."""
    ended: bool = False
    """Whether the process has ended, for any reason."""

    def done(self) -> bool:
        """Return whether the work has ended, or is left to the lifeline of a stopped process that was killed."""
        return self.end.work is Work.ENDED or (self.end.work is Work.STOPPED and self.ended)

    def event(self) -> tuple[str, dict[str, Any]]:
        """Return kind and data of the event that tells of it."""
        kind = "client_terminated" if self.done() else "client_not_terminated"
        data = {
            "pid": self.pid,
            "server": self.end.server,
            "answer": self.end.answer,
            "signals": list(self.signals),
            "ended": self.ended,
        }
        return kind, data


async def terminate(lanes: Sequence[TerminationLane], client: ProcessHandle, plan: TerminationPlan) -> Termination:
    """End a client according to ``plan``, within the plan's deadlines; ``lanes``: those on which it may have work.

    Failures of the daemon or the process are part of the result. After a cancellation, no further signal is sent.
    """
    end = await end_work(lanes, client, plan.answer_within)
    sent: list[str] = []
    if plan.kills() and end.work.in_flight and client.stopped():
        sent = await _end_process(client, signal.SIGKILL, None)
    elif plan.first is not None and (end.work is Work.ENDED or plan.force):
        sent = await _end_process(client, plan.first, plan.grace)
    return Termination(client.key.pid, end, tuple(sent), not client.alive())


async def end_work(lanes: Sequence[TerminationLane], client: ProcessHandle, within: float) -> WorkEnd:
    """End a client's GPU work on these lanes, and leave its process alone. Takes at most ``within`` seconds."""
    async with beside(*(_end_on(lane, client, within) for lane in lanes)) as ending:
        return of_all([await each for each in ending])


def of_all(ends: Sequence[WorkEnd]) -> WorkEnd:
    """Return the one of several lanes that says how it stands with a client: work that may run on any runs. Pure."""
    return min(ends, key=lambda end: (end.work is not Work.GONE, not end.work.in_flight, end.work is not Work.ENDED))


async def _end_on(lane: TerminationLane, client: ProcessHandle, within: float) -> WorkEnd:
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
        if client.stopped():
            return WorkEnd(Work.STOPPED, server, "the process is stopped: its server would wait for it")
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
