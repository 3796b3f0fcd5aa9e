"""The active process and the standby of a program: executes what `mpsguard.vault.supervisor.decision` decides."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from mpsguard.linux.descriptors.io_fence import IoFence
from mpsguard.linux.processes import process_tree
from mpsguard.linux.systemd import handover
from mpsguard.linux.systemd.handover import Handover
from mpsguard.linux.tasks import Owner
from mpsguard.vault.supervisor import decision, process_stop
from mpsguard.vault.supervisor.channel import KeptSockets, ProgramChannel
from mpsguard.vault.supervisor.child_process import ChildProcess, kill_descendants, reap_children
from mpsguard.vault.supervisor.guard_client import EndWork
from mpsguard.vault.wire import supervisor_wire as wire
from mpsguard.vault.wire.supervisor_wire import ROLE_VARIABLE, ProcessRole

GRACE: Final = 10.0
"""Default seconds from SIGTERM to SIGKILL for a process that is ended without a signal from the user."""
PROMOTION_WITHIN: Final = 60.0
"""Seconds for the vault to promote a standby; a guard may be restarted meanwhile."""
SETTLE: Final = 10.0
"""Seconds after which a process that became ready, or was promoted, counts as working."""

_CANNOT_RUN: Final = 126
_LATER: Final = 0.01
"""Seconds before checking again whether a new standby may be started: a failover has priority."""
_FIRST_STEPS: Final = 0.25
"""Seconds that a successor has for itself. In this time it takes the connections, if it wants them. The superseded
process is ended only afterwards, because the driver is busy with the end of a process that used a GPU."""


class Plan(msgspec.Struct, frozen=True):
    """How the processes are started and ended."""

    arguments: tuple[str, ...]
    environment: Mapping[ProcessRole, Mapping[str, str]]
    listeners: Mapping[int, str]
    """Listening sockets and their names; the descriptors stay owned by the caller."""
    own_group: bool
    give_up: int
    grace: float = GRACE
    promotion_within: float = PROMOTION_WITHIN
    settle: float = SETTLE
    """Seconds; see `decision.Settled`. With 0 every process that was ready has settled."""


class _Process:
    """One process, its channel, and the I/O fence of its connections once it has requested one."""

    def __init__(self, program: ChildProcess, channel: ProgramChannel) -> None:
        self.program = program
        self.channel = channel
        self.fence: IoFence | None = None

    def close_fence(self) -> None:
        """Close the fence's descriptor, if any; only after the process has ended or can no longer be superseded."""
        if self.fence is not None:
            self.fence.close()


class FailoverPair:
    """Owns the processes, their channels, and the connections that are kept for them. A `supervisor.Program`."""

    def __init__(self, plan: Plan, end_work: EndWork, say: Callable[[str], None], ended: Callable[[], None]) -> None:
        """Prepare to run a program.

        Args:
            plan: how its processes are started and ended.
            end_work: as for `Supervisor`.
            say: prints a line to the user.
            ended: called when there is an exit code.
        """
        self.exit_code: int | None = None
        self._plan = plan
        self._end_work = end_work
        self._say = say
        self._ended = ended
        self._kept = KeptSockets()
        self._processes: dict[int, _Process] = {}
        self._tasks = Owner()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopping: asyncio.Task[None] | None = None
        """Stops a superseded process; its successor gets no connections before this has finished."""
        self._switching = False
        """Whether a successor may be about to take the connections: no process is started meanwhile."""
        self._to_kill: list[ChildProcess] = []
        """Superseded processes that have been stopped."""
        self._state, _ = decision.begin(plan.give_up)

    def start(self) -> None:
        """Start the first process; raise OSError if it cannot be started."""
        process_tree.adopts_orphans()
        self._start(ProcessRole.ACTIVE)

    def close(self) -> None:
        """Release everything except the processes; safe to call twice."""
        for timer in self._timers.values():
            timer.cancel()
        self._tasks.cancel()
        for process in self._processes.values():
            self._close_channel(process.channel)
            process.close_fence()
        self._kept.close()

    # --- Program

    def reap(self, stopped_for_terminal: Callable[[], None]) -> None:
        """Reap every child that has ended; for SIGCHLD."""
        reap_children({one.program.pid: one.program for one in self._processes.values()}, stopped_for_terminal)
        ended = [number for number, one in self._processes.items() if one.program.exit_code is not None]
        if not ended:
            return
        # Handle all earlier messages first, so that a promotion is seen before the end of the superseded process.
        for number, process in list(self._processes.items()):
            if number in ended:
                process.channel.read_rest()
            else:
                self._read(process.channel)
        for number in ended:
            process = self._processes.pop(number)
            self._close_channel(process.channel)
            process.close_fence()
            self._disarm(f"settled {number}")
            code = process.program.exit_code
            assert code is not None
            before = self._state
            self._apply(decision.ProgramEnded(number, code))
            if not before.over:
                self._report_end(before, number, process.program.pid, code)

    def stopping(self, number: signal.Signals) -> None:
        """Start no more processes, because the user wants the program to end."""
        self._apply(decision.Stop(128 + number))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all processes, to the standby first, so that it does not replace the active one.

        A superseded process gets none: it is being ended, and must not resume.
        """
        told = [member.number for member in self._state.members if not member.superseded]
        for each in sorted(told, key=lambda each: each == self._state.active):
            self._processes[each].program.signal(number)

    def in_group(self, pid: int) -> bool:
        """Return whether `signal` reaches a process."""
        return any(process.program.in_group(pid) for process in self._processes.values())

    async def kill_all(self) -> None:
        """SIGKILL all processes and their descendants."""
        await kill_descendants(os.getpid())

    # --- events and actions

    def _apply(self, event: decision.Event) -> None:
        self._state, actions = decision.decide(self._state, event)
        for number, process in self._processes.items():
            process.channel.serves = number == self._state.serving
        if self._state.pending_start is None:
            self._disarm("start")
        if not self._state.promotion_due:
            self._disarm("promotion")
        for action in actions:
            self._execute(action)

    def _execute(self, action: decision.Action) -> None:
        match action:
            case decision.StartProcess(role, after):
                self._arm("start", after, lambda: self._try_start(role))
            case decision.AwaitPromotion(number):
                late = decision.NotPromoted(number)
                self._arm("promotion", self._plan.promotion_within, lambda: self._apply(late))
            case decision.Supersede(number):
                self._supersede(self._processes[number])
            case decision.End(number):
                self._tasks.spawn(process_stop.end(self._processes[number].program, self._end_work, self._plan.grace))
            case decision.Finish(code):
                self.exit_code = code
                self._ended()

    def _try_start(self, role: ProcessRole) -> None:
        if self._switching:
            # Starting a process takes longer than everything else that the supervisor does during a failover.
            self._arm("start", _LATER, lambda: self._try_start(role))
            return
        try:
            self._start(role)
        except OSError as error:
            self._say(f"{self._plan.arguments[0]}: {error.strerror}")
            number = self._state.next_number
            self._apply(decision.Started())
            self._apply(decision.ProgramEnded(number, _CANNOT_RUN))

    def _start(self, role: ProcessRole) -> None:
        channel = ProgramChannel(self._kept, self._on_message)
        try:
            pid = handover.start(
                self._plan.arguments,
                {**self._plan.environment[role], ROLE_VARIABLE: role.value},
                Handover(self._plan.listeners, {wire.VARIABLE: channel.theirs.fileno()}),
                own_group=self._plan.own_group,
            )
        except BaseException:
            channel.close()
            raise
        channel.theirs.close()
        self._processes[self._state.next_number] = _Process(ChildProcess(pid, self._plan.own_group), channel)
        asyncio.get_running_loop().add_reader(channel.fileno(), self._read, channel)
        self._apply(decision.Started())

    def _read(self, channel: ProgramChannel) -> None:
        if not channel.read():
            self._close_channel(channel)

    def _on_message(
        self, channel: ProgramChannel, message: wire.Ready | wire.Promoted | wire.Take | wire.Fence
    ) -> None:
        number = next((number for number, one in self._processes.items() if one.channel is channel), None)
        if number is None:
            return
        match message:
            case wire.Ready():
                self._apply(decision.BecameReady(number))
                self._arm_settled(number)
            case wire.Promoted():
                if self._kept.all():
                    self._await_take()
                self._apply(decision.PromotionDone(number))
                self._arm_settled(number)
            case wire.Take(id):
                if channel.serves:
                    self._tasks.spawn(self._give(channel, message))
                else:
                    channel.refuse(id, "another process is the active one")
            case wire.Fence(id):
                try:
                    self._give_fence_pass(self._processes[number], message)
                except OSError as error:
                    channel.refuse(id, f"no I/O fence can be created: {error.strerror}")

    def _give_fence_pass(self, process: _Process, request: wire.Fence) -> None:
        if process.fence is None:
            process.fence = IoFence()
        fence_pass = process.fence.new_pass()
        try:
            process.channel.give_fence_pass(request, fence_pass)
        finally:
            os.close(fence_pass)

    async def _give(self, channel: ProgramChannel, request: wire.Take) -> None:
        while self._stopping is not None and not self._stopping.done():
            await asyncio.wait({self._stopping})
        if channel.serves:
            channel.give_all(request)
            self._switching = False

    def _supersede(self, process: _Process) -> None:
        """Fence the old process. Without kept connections, give it the grace period to end and to report why."""
        program, fence = process.program, process.fence
        if not self._kept.all():
            self._tasks.spawn(process_stop.kill_after_grace(program, self._end_work, self._plan.grace))
            return
        self._switching = True
        self._disarm("quiet")
        before = self._stopping if self._stopping is not None and not self._stopping.done() else None
        if before is None and fence is not None and fence.shut():
            # The fence keeps it from the connections. Stop it nevertheless, without waiting: the successor is to have
            # the GPU and the driver for itself.
            program.signal(signal.SIGSTOP)
            self._on_quiesced(program)
            return

        async def quiesce() -> None:
            if before is not None:
                await asyncio.wait({before})
            await process_stop.quiesce(program, fence, self._say)

        self._stopping = self._tasks.spawn(quiesce())
        self._stopping.add_done_callback(lambda task: None if task.cancelled() else self._on_quiesced(program))

    def _on_quiesced(self, program: ChildProcess) -> None:
        self._to_kill.append(program)
        self._await_take()

    def _await_take(self) -> None:
        self._switching = True
        self._arm("quiet", _FIRST_STEPS, self._on_quiet_over)

    def _on_quiet_over(self) -> None:
        if self._stopping is not None and not self._stopping.done():
            return
        self._switching = False
        to_kill, self._to_kill = self._to_kill, []
        for program in to_kill:
            process_stop.kill_stopped(program)

    # --- timers and output

    def _arm_settled(self, number: int) -> None:
        if not self._plan.settle:
            # At once, not in the next turn of the loop: this turn may handle its end.
            self._apply(decision.Settled(number))
            return
        self._arm(f"settled {number}", self._plan.settle, lambda: self._apply(decision.Settled(number)))

    def _report_end(self, before: decision.PairState, number: int, pid: int, code: int) -> None:
        """Print one line for each death: which process, how it ended, and what follows."""
        member = before.member(number)
        if member is None or (code == 0 and (member.superseded or number == before.active)):
            return
        after = self._state
        # The guard may promote the standby before the death of the active process is seen here.
        role = "formerly active" if member.superseded else "active" if number == before.active else "standby"
        how = f"exit code {code}" if code <= 128 else f"exit code {code}, signal {code - 128}"
        if after.given_up:
            self._say(f"the {role} process {pid} ended ({how}); gave up after {after.deaths} deaths in a row")
        elif role == "standby" or after.active is None:
            self._say(f"the {role} process {pid} ended ({how}); another one is started")
        else:
            successor = self._processes.get(after.active)
            named = "its standby" if successor is None else f"its standby {successor.program.pid}"
            self._say(f"the {role} process {pid} ended ({how}); {named} takes over")

    def _arm(self, name: str, after: float, then: Callable[[], None]) -> None:
        self._disarm(name)

        def due() -> None:
            del self._timers[name]
            then()

        self._timers[name] = asyncio.get_running_loop().call_later(after, due)

    def _disarm(self, name: str) -> None:
        timer = self._timers.pop(name, None)
        if timer is not None:
            timer.cancel()

    def _close_channel(self, channel: ProgramChannel) -> None:
        if channel.fileno() >= 0:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(channel.fileno())
        channel.close()
