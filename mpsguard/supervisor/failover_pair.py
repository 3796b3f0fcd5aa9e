"""The active process and the standby of a program, as one: what `mpsguard.supervisor.decision` decides is done here."""

import asyncio
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from mpsguard.linux import handover, process_tree
from mpsguard.linux.handover import Handover
from mpsguard.linux.io_fence import IoFence
from mpsguard.supervisor import decision, process_stop, wire
from mpsguard.supervisor.channel import KeptSockets, ProgramChannel
from mpsguard.supervisor.child_process import ChildProcess, kill_descendants, reap_children
from mpsguard.supervisor.role import ROLE_VARIABLE, Role
from mpsguard.supervisor.supervisor import EndWork
from mpsguard.tasks import TaskSet

GRACE: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for a process that is ended without the user's word, unless he says otherwise."""
PROMOTION_WITHIN: Final = 60.0
"""Seconds for the vault to promote a standby; a guard may be restarted meanwhile."""
SETTLE: Final = 10.0
"""Seconds after which a process that became ready, or was promoted, counts as one that works."""

_CANNOT_RUN: Final = 126
_LATER: Final = 0.01
"""Seconds until it is looked at again whether a new standby may be started: a takeover comes first."""
_FIRST_STEPS: Final = 0.25
"""Seconds that a successor has for itself. It asks for the connections then, if it wants them; and who was superseded
is ended only afterwards, since the driver is busy with the end of a process that used a GPU."""


class Plan(msgspec.Struct, frozen=True):
    """How the processes are started and ended."""

    arguments: tuple[str, ...]
    environment: Mapping[Role, Mapping[str, str]]
    listeners: Mapping[int, str]
    """Listening sockets and their names; the descriptors stay the caller's."""
    own_group: bool
    give_up: int
    grace: float = GRACE
    promotion_within: float = PROMOTION_WITHIN
    settle: float = SETTLE
    """Seconds; see `decision.Settled`. With 0 every process that was ready has settled."""


class _Process:
    """One of them, its desk, and the gate in front of its connections once it has asked for one."""

    def __init__(self, program: ChildProcess, desk: ProgramChannel) -> None:
        self.program = program
        self.desk = desk
        self.gate: IoFence | None = None

    def close_gate(self) -> None:
        """Give it back, if there is one; not before the process has ended or cannot be superseded any more."""
        if self.gate is not None:
            self.gate.close()


class FailoverPair:
    """Owns the processes, their desks, and the connections that are kept for them. A `supervise.Program`."""

    def __init__(self, plan: Plan, end_work: EndWork, say: Callable[[str], None], ended: Callable[[], None]) -> None:
        """``ended`` is called when there is an exit code; ``end_work`` as for `Supervisor`."""
        self.exit_code: int | None = None
        self._plan = plan
        self._end_work = end_work
        self._say = say
        self._ended = ended
        self._kept = KeptSockets()
        self._processes: dict[int, _Process] = {}
        self._tasks = TaskSet()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._stopping: asyncio.Task[None] | None = None
        """Holds a superseded process still; nothing is given to its successor before."""
        self._handing_over = False
        """Whether a successor may be about to ask for the connections: nobody is started meanwhile."""
        self._to_kill: list[ChildProcess] = []
        """Superseded, and still."""
        self._state, _ = decision.begin(plan.give_up)

    def start(self) -> None:
        """Start the first process; OSError if it cannot be."""
        process_tree.adopts_orphans()
        self._start(Role.ACTIVE)

    def close(self) -> None:
        """Give everything back but the processes; safe to call twice."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()
        for process in self._processes.values():
            self._close_desk(process.desk)
            process.close_gate()
        self._kept.close()

    # --- a supervise.Program

    def reap(self, stopped_for_terminal: Callable[[], None]) -> None:
        """Take in every child that has ended; for SIGCHLD."""
        reap_children({one.program.pid: one.program for one in self._processes.values()}, stopped_for_terminal)
        ended = [number for number, one in self._processes.items() if one.program.exit_code is not None]
        if not ended:
            return
        # What was said before counts before, by whomever: a promotion comes before the end of who was superseded.
        for number, process in list(self._processes.items()):
            if number in ended:
                process.desk.read_rest()
            else:
                self._read(process.desk)
        for number in ended:
            process = self._processes.pop(number)
            self._close_desk(process.desk)
            process.close_gate()
            self._disarm(f"settled {number}")
            code = process.program.exit_code
            assert code is not None
            before = self._state
            self._happen(decision.Ended(number, code))
            if not before.over:
                self._tell_end(before, number, process.program.pid, code)

    def stopping(self, number: signal.Signals) -> None:
        """The user wants it to end: nobody is started any more."""
        self._happen(decision.Stop(128 + number))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all, to the standby first: it shall not go on where the active one leaves off.

        Not to who was superseded: it is being ended, and must not run on.
        """
        told = [member.number for member in self._state.members if not member.superseded]
        for each in sorted(told, key=lambda each: each == self._state.active):
            self._processes[each].program.signal(number)

    def in_group(self, pid: int) -> bool:
        """Whether `signal` reaches a process."""
        return any(process.program.in_group(pid) for process in self._processes.values())

    async def kill_all(self) -> None:
        """SIGKILL all and what came of them."""
        await kill_descendants(os.getpid())

    # --- what happens, and what is done

    def _happen(self, event: decision.Event) -> None:
        self._state, actions = decision.decide(self._state, event)
        for number, process in self._processes.items():
            process.desk.serves = number == self._state.serving
        if self._state.coming is None:
            self._disarm("start")
        if not self._state.promotion_due:
            self._disarm("promotion")
        for action in actions:
            self._do(action)

    def _do(self, action: decision.Action) -> None:
        match action:
            case decision.Start(role, after):
                self._arm("start", after, lambda: self._start_or_tell(role))
            case decision.AwaitPromotion(number):
                late = decision.NotPromoted(number)
                self._arm("promotion", self._plan.promotion_within, lambda: self._happen(late))
            case decision.Supersede(number):
                self._supersede(self._processes[number])
            case decision.End(number):
                self._tasks.spawn(process_stop.end(self._processes[number].program, self._end_work, self._plan.grace))
            case decision.Finish(code):
                self.exit_code = code
                self._ended()

    def _start_or_tell(self, role: Role) -> None:
        if self._handing_over:
            # To start a process takes longer than all else that a takeover needs of us.
            self._arm("start", _LATER, lambda: self._start_or_tell(role))
            return
        try:
            self._start(role)
        except OSError as error:
            self._say(f"{self._plan.arguments[0]}: {error.strerror}")
            number = self._state.next_number
            self._happen(decision.Started())
            self._happen(decision.Ended(number, _CANNOT_RUN))

    def _start(self, role: Role) -> None:
        desk = ProgramChannel(self._kept, self._heard)
        try:
            pid = handover.start(
                self._plan.arguments,
                {**self._plan.environment[role], ROLE_VARIABLE: role.value},
                Handover(self._plan.listeners, {wire.VARIABLE: desk.theirs.fileno()}),
                own_group=self._plan.own_group,
            )
        except BaseException:
            desk.close()
            raise
        desk.theirs.close()
        self._processes[self._state.next_number] = _Process(ChildProcess(pid, self._plan.own_group), desk)
        asyncio.get_running_loop().add_reader(desk.fileno(), self._read, desk)
        self._happen(decision.Started())

    def _read(self, desk: ProgramChannel) -> None:
        if not desk.read():
            self._close_desk(desk)

    def _heard(self, desk: ProgramChannel, message: wire.Ready | wire.Promoted | wire.Take | wire.Fence) -> None:
        number = next((number for number, one in self._processes.items() if one.desk is desk), None)
        if number is None:
            return
        match message:
            case wire.Ready():
                self._happen(decision.Ready(number))
                self._arm_settled(number)
            case wire.Promoted():
                if self._kept.all():
                    self._await_question()
                self._happen(decision.Promoted(number))
                self._arm_settled(number)
            case wire.Take(id):
                if desk.serves:
                    self._tasks.spawn(self._give(desk, message))
                else:
                    desk.refuse(id, "another process is the active one")
            case wire.Fence(id):
                try:
                    self._give_passage(self._processes[number], message)
                except OSError as error:
                    desk.refuse(id, f"no gate can be made: {error.strerror}")

    def _give_passage(self, process: _Process, request: wire.Fence) -> None:
        if process.gate is None:
            process.gate = IoFence()
        passage = process.gate.passage()
        try:
            process.desk.give_passage(request, passage)
        finally:
            os.close(passage)

    async def _give(self, desk: ProgramChannel, request: wire.Take) -> None:
        while self._stopping is not None and not self._stopping.done():
            await asyncio.wait({self._stopping})
        if desk.serves:
            desk.give_all(request)
            self._handing_over = False

    def _supersede(self, process: _Process) -> None:
        """Nobody else may write to what is kept; where nothing is, it has time to end, and to say why, by itself."""
        program, gate = process.program, process.gate
        if not self._kept.all():
            self._tasks.spawn(process_stop.outlive(program, self._end_work, self._plan.grace))
            return
        self._handing_over = True
        self._disarm("quiet")
        before = self._stopping if self._stopping is not None and not self._stopping.done() else None
        if before is None and gate is not None and gate.shut():
            # Wherever it is, it does not get at them any more. Stopped all the same, and not waited for: its successor
            # shall have the GPU and the driver for itself.
            program.signal(signal.SIGSTOP)
            self._is_still(program)
            return

        async def hold_still() -> None:
            if before is not None:
                await asyncio.wait({before})
            await process_stop.hold_still(program, gate, self._say)

        self._stopping = self._tasks.spawn(hold_still())
        self._stopping.add_done_callback(lambda task: None if task.cancelled() else self._is_still(program))

    def _is_still(self, program: ChildProcess) -> None:
        self._to_kill.append(program)
        self._await_question()

    def _await_question(self) -> None:
        self._handing_over = True
        self._arm("quiet", _FIRST_STEPS, self._quiet_is_over)

    def _quiet_is_over(self) -> None:
        if self._stopping is not None and not self._stopping.done():
            return
        self._handing_over = False
        to_kill, self._to_kill = self._to_kill, []
        for program in to_kill:
            self._tasks.spawn(process_stop.kill(program, self._end_work))

    # --- its own

    def _arm_settled(self, number: int) -> None:
        if not self._plan.settle:
            # At once, and not in the next turn of the loop: its end may be known in this one.
            self._happen(decision.Settled(number))
            return
        self._arm(f"settled {number}", self._plan.settle, lambda: self._happen(decision.Settled(number)))

    def _tell_end(self, before: decision.State, number: int, pid: int, code: int) -> None:
        """One line for each death: which process, how, and what follows."""
        member = before.member(number)
        if member is None or member.superseded or (code == 0 and number == before.active):
            return
        after = self._state
        role = "active" if number == before.active else "standby"
        how = f"exit code {code}" if code <= 128 else f"exit code {code}, signal {code - 128}"
        if after.given_up:
            self._say(f"the {role} process {pid} ended ({how}); gave up after {after.deaths} deaths in a row")
        elif role == "standby" or after.active is None:
            self._say(f"the {role} process {pid} ended ({how}); another one is started")
        else:
            self._say(f"the {role} process {pid} ended ({how}); its standby goes on")

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

    def _close_desk(self, desk: ProgramChannel) -> None:
        if desk.fileno() >= 0:
            with suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(desk.fileno())
        desk.close()
