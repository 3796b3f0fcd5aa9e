"""How `mpsguard run` handles signals: it ends the clients' GPU work first, and only then forwards the signal.

* The first INT, TERM, HUP or QUIT: the work of every client among the descendants is ended, then the signal is
  forwarded.
* A second one: the same, with SIGKILL for all. HUP is forwarded again, since terminals send it twice.
* One during the guard's work: the guard is not waited for any more.
* The end of the grace, if there is any: as a second one.
* USR1, USR2, WINCH: forwarded unchanged.
* TSTP, CONT: stop and continue the program together with the supervisor.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final, Protocol

from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.tasks import beside
from mpsguard.vault.supervisor.guard_client import EndWork, GuardSilentError

_STOPS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PLAIN: Final = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH)

_ROUNDS: Final = 5
"""Maximum number of requests to the guard: clients may start while the work of others ends."""


class Program(Protocol):
    """What is supervised: one process, or several that form one program."""

    @property
    def exit_code(self) -> int | None:
        """As in a shell; None while the program runs."""

    def reap(self, stopped_for_terminal: Callable[[], None]) -> None:
        """Reap every child that has ended; for SIGCHLD."""

    def stopping(self, number: signal.Signals) -> None:
        """Prepare for the end that the user wants."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the program."""

    def in_group(self, pid: int) -> bool:
        """Return whether `signal` reaches a process."""

    async def kill_all(self) -> None:
        """SIGKILL the program and all its descendants."""


Start = Callable[[Callable[[], None]], Program]
"""Starts the program; raises OSError. The program calls the argument if it ends otherwise than in `Program.reap`."""


class Supervisor:
    """Runs one program to its end."""

    def __init__(self, start: Start, end_work: EndWork, *, grace: float | None, foreground: bool):
        """Prepare to run a program.

        Args:
            start: starts the program.
            end_work: asks the guard to end GPU work.
            grace: seconds from the first signal to SIGKILL; None: no limit.
            foreground: whether the terminal belongs to the program.
        """
        self._start = start
        self._request_end_work = end_work
        self._grace = grace
        self._foreground = foreground
        self._events: asyncio.Queue[signal.Signals | None] = asyncio.Queue()
        """Stop signals, SIGKILL for the end of the grace, and None for the program's end."""
        self._forwarded = False
        self._timer: asyncio.TimerHandle | None = None
        self._said: set[str] = set()
        self.interrupted_by: signal.Signals | None = None
        """The first signal to this process that asked for the end; None if there was none."""

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End the program as a signal to this process would."""
        self._events.put_nowait(number)

    async def run(self, say: Callable[[str], None]) -> int:
        """Start the program and return its exit code; raise OSError if it cannot be started. ``say`` prints a line."""
        self._say = say
        loop = asyncio.get_running_loop()
        # Before the program is started: a signal that arrives in between is forwarded afterwards.
        caught = [number for number in _STOPS if signal.getsignal(number) is not signal.SIG_IGN]
        for number in caught:
            loop.add_signal_handler(number, self._interrupted, number)
        started: list[Program] = []
        for number, handler in self._forwarders(started):
            loop.add_signal_handler(number, handler)
            caught.append(number)
        try:
            program = self._start(self._ended)
            # Handlers run in the event loop, so not before this line.
            started.append(program)
            reap = self._reaper(program)
            loop.add_signal_handler(signal.SIGCHLD, reap)
            caught.append(signal.SIGCHLD)
            reap()
            while (stop := await self._events.get()) is not None:
                await self._stop(program, stop)
            assert program.exit_code is not None
            return program.exit_code
        finally:
            if self._timer is not None:
                self._timer.cancel()
            for number in caught:
                loop.remove_signal_handler(number)

    def _interrupted(self, number: signal.Signals) -> None:
        self.interrupted_by = self.interrupted_by or number
        self.stop(number)

    def _ended(self) -> None:
        self._events.put_nowait(None)

    def _reaper(self, program: Program) -> Callable[[], None]:
        def reap() -> None:
            before = program.exit_code
            program.reap(self._on_terminal_wanted)
            if before is None and program.exit_code is not None:
                self._ended()

        return reap

    def _forwarders(self, started: Sequence[Program]) -> list[tuple[signal.Signals, Callable[[], None]]]:
        """Return handlers that forward their signals to the programs that ``started`` contains when they arrive."""

        def forward(number: signal.Signals) -> None:
            for program in started:
                program.signal(number)

        def stop() -> None:
            forward(signal.SIGTSTP)
            os.kill(os.getpid(), signal.SIGSTOP)

        forwarders: list[tuple[signal.Signals, Callable[[], None]]] = [
            (number, partial(forward, number)) for number in _PLAIN if signal.getsignal(number) is not signal.SIG_IGN
        ]
        if not self._foreground:
            forwarders.append((signal.SIGTSTP, stop))
            forwarders.append((signal.SIGCONT, partial(forward, signal.SIGCONT)))
        return forwarders

    async def _stop(self, program: Program, number: signal.Signals) -> None:
        if self._forwarded and number is not signal.SIGHUP:
            number = signal.SIGKILL
        program.stopping(number)
        with ExitStack() as held:
            clients: dict[ProcessKey, ProcessHandle] = {}
            await self._wait_unless_interrupted(self._end_work(clients, held, number))
            if number is signal.SIGKILL:
                await program.kill_all()
                # Also reap processes that have left the program's session, which would otherwise remain as zombies.
                self._reaper(program)()
                return
            program.signal(number)
            for client in clients.values():
                if client.alive() and not program.in_group(client.key.pid):
                    with suppress(PermissionError, ProcessLookupError):
                        client.signal(number)
            # A stopped process would not handle the signal.
            program.signal(signal.SIGCONT)
        self._forwarded |= number is not signal.SIGHUP
        if self._timer is None and self._grace is not None:
            self._timer = asyncio.get_running_loop().call_later(self._grace, self._on_grace_over)

    def _on_grace_over(self) -> None:
        self._events.put_nowait(signal.SIGKILL)

    async def _wait_unless_interrupted(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for the guard's work, unless another signal comes; the program's own end does not interrupt it."""
        kept: list[signal.Signals | None] = []
        interrupted = False
        async with beside(work) as (ending,):
            while not ending.done() and not interrupted:
                async with beside(self._events.get()) as (next_event,):
                    await asyncio.wait({ending, next_event}, return_when=asyncio.FIRST_COMPLETED)
                if next_event.cancelled():
                    break
                event = next_event.result()
                interrupted = event not in (None, signal.SIGHUP) and not ending.done()
                if not interrupted and event is not signal.SIGHUP:
                    kept.append(event)
        if interrupted:
            self._say_once("interrupted", "no longer waiting for the guard")
        else:
            ending.result()
        for event in kept:
            self._events.put_nowait(event)

    async def _end_work(
        self, clients: dict[ProcessKey, ProcessHandle], held: ExitStack, number: signal.Signals
    ) -> None:
        """End the work of all clients among the descendants; add a handle on each to ``clients``."""
        ended: set[ProcessKey] = set()
        for _ in range(_ROUNDS):
            asked = [key for key in process_tree.descendants(os.getpid()) if key not in ended]
            try:
                outcomes = await self._request_end_work(asked)
            except GuardSilentError as error:
                self._say_once("plain", f"{error}; {number.name} is passed on as it is")
                return
            if not outcomes and not ended:
                self._say_once(
                    "plain", f"no client of the guard among its processes; {number.name} is passed on as it is"
                )
            for one in outcomes:
                if one.in_flight:
                    self._say_once("work", f"GPU work of process {one.process.pid} may go on ({one.answer})")
                if one.process not in clients:
                    with suppress(ProcessLookupError):
                        clients[one.process] = held.enter_context(ProcessHandle.hold(one.process))
            # New clients may have started while this work ended.
            fresh = {one.process for one in outcomes if one.ended}
            if not fresh:
                return
            ended |= fresh

    def _on_terminal_wanted(self) -> None:
        self._say_once(
            "terminal", "the program wants to use the terminal, which belongs to mpsguard run: see --foreground"
        )

    def _say_once(self, what: str, text: str) -> None:
        """Print ``text`` once for each ``what``."""
        if what not in self._said:
            self._said.add(what)
            self._say(text)
