"""What `mpsguard run` does with signals: the clients' GPU work ends first, the program hears of it only then.

first INT, TERM, HUP, QUIT   the work of every client below us is ended, then the signal is passed on
a second one                 the same, with SIGKILL for all; HUP is passed on again, terminals send it twice
one while the guard works    it is not waited for any longer
after the grace, if any      as a second one
USR1, USR2, WINCH            passed on as they are
TSTP, CONT                   the program stops and goes on with us
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Protocol

from mpsguard.control_api.async_client import NoAnswerError
from mpsguard.control_api.messages.end_work import Outcome
from mpsguard.linux import process_tree
from mpsguard.linux.process import ProcessHandle
from mpsguard.model import ProcessKey
from mpsguard.remedies.termination import Work

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PLAIN: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)

_ROUNDS: Final = 5
"""Times the guard is asked at most: clients may come while the work of others ends."""

EndWork = Callable[[Sequence[ProcessKey]], Awaitable[Outcome]]
"""Ends the GPU work of those that are clients; raises NoAnswerError."""


class Program(Protocol):
    """What is supervised: one process, or several that are one program."""

    @property
    def exit_code(self) -> int | None:
        """As a shell has it; None while it goes on."""

    def reap(self, stopped_for_terminal: Callable[[], None]) -> None:
        """Take in every child that has ended; for SIGCHLD."""

    def stopping(self, number: signal.Signals) -> None:
        """The user wants it to end."""

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""

    def in_group(self, pid: int) -> bool:
        """Whether `signal` reaches a process."""

    async def kill_all(self) -> None:
        """SIGKILL it and all that came of it."""


Start = Callable[[Callable[[], None]], Program]
"""Starts the program, which calls the argument when it has ended otherwise than by `Program.reap`; OSError."""


class Supervisor:
    """Runs one program to its end."""

    def __init__(self, start: Start, end_work: EndWork, *, grace: float | None, foreground: bool):
        """``grace``: seconds from the first signal to SIGKILL. ``foreground``: the terminal is the program's."""
        self._start = start
        self._ask = end_work
        self._grace = grace
        self._foreground = foreground
        self._happened: asyncio.Queue[signal.Signals | None] = asyncio.Queue()
        """Signals to stop, SIGKILL for the end of the grace; None for the program's end."""
        self._passed_on = False
        self._timer: asyncio.TimerHandle | None = None
        self._said: set[str] = set()

    async def run(self, say: Callable[[str], None]) -> int:
        """Start the program and return its exit code; OSError if it cannot be started. ``say`` tells the user."""
        self._say = say
        loop = asyncio.get_running_loop()
        # Before the program is there: a signal that comes between is passed on when it is.
        caught = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in caught:
            loop.add_signal_handler(number, self._happened.put_nowait, number)
        started: list[Program] = []
        for number, handler in self._passers(started):
            loop.add_signal_handler(number, handler)
            caught.append(number)
        try:
            program = self._start(self._ended)
            # Handlers run in the loop, and so not before this.
            started.append(program)
            reap = self._reaper(program)
            loop.add_signal_handler(signal.SIGCHLD, reap)
            caught.append(signal.SIGCHLD)
            reap()
            while (stop := await self._happened.get()) is not None:
                await self._stop(program, stop)
            assert program.exit_code is not None
            return program.exit_code
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for number in caught:
                loop.remove_signal_handler(number)

    def _ended(self) -> None:
        self._happened.put_nowait(None)

    def _reaper(self, program: Program) -> Callable[[], None]:
        def reap() -> None:
            before = program.exit_code
            program.reap(self._wants_the_terminal)
            if before is None and program.exit_code is not None:
                self._ended()

        return reap

    def _passers(self, started: Sequence[Program]) -> list[tuple[signal.Signals, Callable[[], None]]]:
        """Signals that are passed on to whoever is in ``started`` when they come."""

        def pass_on(number: signal.Signals) -> None:
            for program in started:
                program.signal(number)

        def stop() -> None:
            pass_on(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGSTOP)

        passers: list[tuple[signal.Signals, Callable[[], None]]] = [
            (number, partial(pass_on, number)) for number in _PLAIN if signal.getsignal(number) is not signal.SIG_IGN
        ]
        if not self._foreground:
            passers.append((signal.SIGTSTP, stop))
            passers.append((signal.SIGCONT, partial(pass_on, signal.SIGCONT)))
        return passers

    async def _stop(self, program: Program, number: signal.Signals) -> None:
        if self._passed_on and number is not signal.SIGHUP:
            number = signal.SIGKILL
        program.stopping(number)
        with ExitStack() as held:
            clients: dict[ProcessKey, ProcessHandle] = {}
            await self._unless_hurried(self._end_work(clients, held, number))
            if number is signal.SIGKILL:
                await program.kill_all()
                # Those that had left its session, too: whoever outlives us would be somebody else's zombie.
                self._reaper(program)()
                return
            program.signal(number)
            for client in clients.values():
                if client.alive() and not program.in_group(client.key.pid):
                    with suppress(PermissionError, ProcessLookupError):
                        client.signal(number)
            # Who is stopped would not hear of it.
            program.signal(signal.SIGCONT)
        self._passed_on |= number is not signal.SIGHUP
        if self._timer is None and self._grace is not None:
            self._timer = asyncio.get_running_loop().call_later(self._grace, self._grace_is_over)

    def _grace_is_over(self) -> None:
        self._happened.put_nowait(signal.SIGKILL)

    async def _unless_hurried(self, work: Awaitable[None]) -> None:
        """Wait for the guard's work, unless another signal comes; the program's own end is no reason to break off."""
        ending = asyncio.ensure_future(work)
        kept: list[signal.Signals | None] = []
        hurried = False
        while not ending.done() and not hurried:
            happening = asyncio.ensure_future(self._happened.get())
            await asyncio.wait({ending, happening}, return_when=asyncio.FIRST_COMPLETED)
            if not happening.done():
                happening.cancel()
                await asyncio.wait({happening})
                break
            event = happening.result()
            hurried = event not in (None, signal.SIGHUP) and not ending.done()
            if not hurried and event is not signal.SIGHUP:
                kept.append(event)
        if hurried:
            ending.cancel()
            await asyncio.wait({ending})
            self._tell("hurried", "the guard is not waited for any longer")
        else:
            ending.result()
        for event in kept:
            self._happened.put_nowait(event)

    async def _end_work(
        self, clients: dict[ProcessKey, ProcessHandle], held: ExitStack, number: signal.Signals
    ) -> None:
        """End the work of all clients below us; a handle on each goes into ``clients``."""
        ended: set[ProcessKey] = set()
        for _ in range(_ROUNDS):
            asked = [key for key in process_tree.descendants(os.getpid()) if key not in ended]
            try:
                told = (await self._ask(asked)).clients
            except NoAnswerError as error:
                self._tell("plain", f"{error}; {number.name} is passed on as it is")
                return
            if not told and not ended:
                self._tell("plain", f"no client of the guard among its processes; {number.name} is passed on as it is")
            for one in told:
                if one.work in (Work.REFUSED, Work.UNKNOWN):
                    self._tell("work", f"GPU work of process {one.process.pid} may go on ({one.answer})")
                if one.process not in clients:
                    with suppress(ProcessLookupError):
                        clients[one.process] = held.enter_context(ProcessHandle.hold(one.process))
            # While the work of these ended, others may have come.
            fresh = {one.process for one in told if one.work is Work.ENDED}
            if not fresh:
                return
            ended |= fresh

    def _wants_the_terminal(self) -> None:
        self._tell("terminal", "the program wants to use the terminal, which is not its own: see --foreground")

    def _tell(self, what: str, text: str) -> None:
        """Once for each ``what``."""
        if what not in self._said:
            self._said.add(what)
            self._say(text)
