# long: one report of a lane, which its start, its watches and its end share
"""A lane: one stock control daemon in a private pipe directory, started, adopted, watched, and left alive at the end.

The lane's processes outlive the guard. `run` looks after them until it is cancelled; cancelling ends the looking,
never the lane. To end the lane itself, send the vendor's ``quit`` (see `Lane.quit`).
"""

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from mpsguard.guard.lanes import command, control_process, lane_spec, lane_state, settings
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply, CommandTimeoutError, CommandWorker
from mpsguard.guard.lanes.control_process import LaneStartError, Launcher
from mpsguard.guard.lanes.lane_judge import LaneJudge
from mpsguard.guard.lanes.lane_spec import LaneSpec
from mpsguard.guard.lanes.lane_turns import LaneTurns
from mpsguard.guard.lanes.levers import LeverError, ServerLevers
from mpsguard.guard.lanes.server_watch import ServerWatch
from mpsguard.guard.lanes.setting_commands import SettingCommands
from mpsguard.guard.lanes.settings import SettingsStore
from mpsguard.guard.lanes.single_flight import SingleFlight
from mpsguard.guard.model import TOLD_TO_QUIT, LaneReport, LaneState, Notify, Server
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.pacing import BurstLimit, backoff
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader
from mpsguard.linux.sockets.packet_stream import PacketStream
from mpsguard.linux.tasks import Owner

_BUSY_POLL: Final = 0.05
"""Seconds between two questions while clients wait for a lane in FAULT or INITIALIZING: no event tells its end."""

_FAULT_POLL: Final = 0.02
"""Seconds between two questions to a lane in FAULT, without any that wait."""

_RECENT: Final = 1.0
"""Seconds for which it is asked so often: a fault takes 0.1 s, or until the last client leaves."""

_FOREIGN_POLL: Final = 1.0
"""Seconds between two looks at a lane in which another's daemon runs; no event tells when that ends."""

_FIRST_BACKOFF: Final = 0.25
"""Seconds, doubled with every start that fails in a row."""

_DYING: Final = 0.5
"""Seconds between the end of a process' sockets and the end of the process, at most."""

_CONNECTING: Final = 64
"""Connections being made at once; the vendor's backlog is 128 and its servers and debuggers need room in it."""


class Lane:
    """See the module. All methods belong to one event loop."""

    def __init__(
        self, spec: LaneSpec, store: SettingsStore, levers: Path, notice: Notify, *, stats: StatReader, start: Launcher
    ) -> None:
        """``levers``: the file in which values of the server's levers are kept that are to be put back."""
        self._stats = stats
        self.spec = spec
        self._launcher = start
        self.report = LaneReport(
            name=spec.name,
            domain=spec.domain,
            state=LaneState.INITIALIZING,
            reason="not looked at yet",
            since=time.time(),
            pipe_directory=str(spec.pipe_directory),
            log_directory=str(spec.log_directory),
        )
        self.turns = LaneTurns()
        self.greeting: bytes | None = None
        """How the control daemon greets its peers; None until one has been seen."""
        self._notice = notice
        self._changed = asyncio.Event()
        self._worker = CommandWorker(
            spec.pipe_directory,
            lambda text: notice("command_timeout", {"detail": text}),
            lambda: self.greeting if self._settled else None,
        )
        self._prompted = asyncio.Event()
        self._judge = LaneJudge(spec, notice, self._prompted.set, self._look_soon)
        self.service, self.recovery = self._judge.service, self._judge.recovery
        """Told of what clients get, and of what is seen of their work."""
        log, ended, heard = spec.log_directory / "server.log", self.service.server_gone, self.recovery.hear
        self._watch = ServerWatch(log, self.ask, self._prompted.set, stats, ended=ended, heard=heard)
        self.levers = ServerLevers(
            self.ask, levers, stats.is_running, lambda: settings.levers_of(self.setting_commands.kept)
        )
        self.setting_commands = SettingCommands(
            self.ask_for,
            deadline=spec.command_deadline,
            store=store,
            levers=self.levers,
            servers=self._running,
            changed=self._settings_changed,
            notice=notice,
        )
        self._settings_changed()
        self._fresh = SingleFlight(self._observe)
        self._control: ProcessHandle | None = None
        self._settled = False
        """Whether the control daemon has the lane's settings; until then no client is admitted."""
        self._said = LaneState.ACTIVE, ""
        """State and reason as the control daemon's last answer has them."""
        self._limit = BurstLimit(spec.restart_burst, spec.restart_window)
        self.quitting = asyncio.Event()  # set once the control daemon was told to quit; it may wait for its clients
        self._quits = 0  # how many were sent, less those that reached no daemon
        self._connecting = asyncio.Semaphore(_CONNECTING)

    # What others ask of a lane.

    async def fresh(self) -> LaneReport:
        """The lane's report from evidence gathered after this call."""
        return await self._fresh()

    def admits_now(self) -> bool:
        """Whether a client may be handed over at once, on the strength of an answer given a moment ago."""
        now = time.monotonic()
        quiet = self.recovery.quiet_at(now) <= now and not self.recovery.why()
        return quiet and self.report.state is LaneState.ACTIVE and self._watch.undisturbed()

    async def admitting(self) -> LaneReport:
        """Wait until a client may be handed to the lane; see `lane_state.admits`. Has no deadline of its own."""
        came = time.monotonic()
        while True:
            changed = self._changed
            quiet = time.monotonic() >= self.recovery.quiet_at(came)
            report = await self.fresh()
            if quiet and lane_state.admits(report.state):
                return report
            with suppress(TimeoutError):
                async with asyncio.timeout(None if report.state is LaneState.DOWN else _BUSY_POLL):
                    await changed.wait()

    async def reachable(self) -> None:
        """Wait, without a deadline, for a control daemon with the lane's settings: one set before would be replaced."""
        while not (self.control_alive() and self._settled):
            await self._changed.wait()

    async def ask(self, line: str) -> CommandReply:
        """Send a command as the guard itself, with the lane's own deadline; raises CommandFailedError."""
        return await self._worker.ask(Command(line), self.spec.command_deadline)

    async def ask_for(self, user: Command, deadline: float | None) -> CommandReply:
        """Send a user's command; raises CommandFailedError, after ``deadline`` seconds if there is one."""
        return await self._worker.ask(user, deadline)

    async def clients(self) -> dict[int, int]:
        """Client pid to server pid, as the control daemon lists them now; raises CommandFailedError."""
        return await self._watch.clients()

    async def connect(self, privileged: bool) -> PacketStream:
        """Return a connection to the control daemon's own socket; OSError if no process listens there."""
        async with self._connecting:
            name = "control_privileged" if privileged else "control"
            return await PacketStream.connect(str(self.spec.pipe_directory / name))

    def control_alive(self) -> bool:
        """Whether the control daemon lives."""
        return self._control is not None and self._control.alive()

    async def has_died(self) -> bool:
        """Whether the control daemon is dead, or dies now: its sockets close a moment before its pidfd says so."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_DYING):
                while self.control_alive():
                    await self._changed.wait()
        return not self.control_alive()

    def expect_quit(self) -> None:
        """Say that the control daemon was told to quit, so that its end is no failure and it is not started again.

        Nor is it if it does not run; one that is just being started is told when it is there.
        """
        self._quits += 1
        self.quitting.set()

    async def quit(self, user: Command) -> CommandReply:
        """Tell the control daemon to quit by a user's command, which is expected from now on; CommandFailedError.

        No longer, if the command did not reach a daemon that lives on: then its end would be a failure again.
        """
        self.expect_quit()
        try:
            return await self.ask_for(user, None)
        except CommandFailedError:
            if not await self.has_died():
                self._quits -= 1
                if not self._quits:
                    self.quitting.clear()
            raise

    # Looking after the lane.

    async def run(self) -> None:
        """Adopt or start the control daemon and keep one running; returns only after an expected quit."""
        try:
            # A lane of an earlier version may be open to strangers. What cannot be mended fails when it is used.
            with suppress(OSError):
                lane_spec.shut_directories(self.spec.pipe_directory, multiuser=self.spec.multiuser)
            failures = 0
            while not self.quitting.is_set():
                found = await self._look()
                if isinstance(found, str):
                    await self._pause(_FOREIGN_POLL)
                    continue
                adopted = found is not None
                process = found or await self._start()
                if process is None:
                    failures += 1
                    await self._pause(backoff(failures, _FIRST_BACKOFF, self.spec.restart_window))
                    continue
                failures = 0
                await self._look_after(process, adopted)
            self._set(state=LaneState.DOWN, reason=TOLD_TO_QUIT, control=None, servers=())
        finally:
            await self._fresh.close()
            await self._worker.close()
            self._watch.end()

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the lane is told to quit."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.quitting.wait()

    async def _look(self) -> ProcessKey | str | None:
        """The control daemon that runs in the lane if it is ours, None if none does, or why it is not ours."""
        evidence = await control_process.look(self.spec.pipe_directory, self.spec.command_deadline, self._stats)
        found = control_process.verdict(evidence, self.spec.pipe_directory)
        if isinstance(found, ProcessKey):
            return found
        if evidence.lock_holder is None:
            return None
        reason = f"not ours: {found}"
        if self.report.reason != reason:
            self._set(state=LaneState.DOWN, reason=reason)
            self._notice("lane_foreign", {"detail": found})
        return reason

    async def _start(self) -> ProcessKey | None:
        loop = asyncio.get_running_loop()
        wait = self._limit.wait(loop.time())
        if wait:
            self._set(state=LaneState.DOWN, flapping=True, control=None, servers=())
            self._notice("lane_flapping", {"wait_seconds": round(wait, 1), "starts": self.report.starts})
            await self._pause(wait)
            if self.quitting.is_set():
                return None
        self._limit.happened(loop.time())
        self._set(state=LaneState.INITIALIZING, reason="the control daemon is starting", starts=self.report.starts + 1)
        try:
            lane_spec.make_directories(self.spec.pipe_directory, self.spec.log_directory, multiuser=self.spec.multiuser)
            # The daemon overwrites it, and leaves what is longer (550): another number, of none.
            (self.spec.pipe_directory / control_process.PID_FILE).unlink(missing_ok=True)
            await self._launcher(self.spec.launch)
        except (LaneStartError, OSError) as error:
            self._set(state=LaneState.DOWN, reason=str(error))
            self._notice("lane_start_failed", {"detail": str(error)})
            return None
        evidence = await control_process.look(self.spec.pipe_directory, self.spec.command_deadline, self._stats)
        found = control_process.verdict(evidence, self.spec.pipe_directory)
        if isinstance(found, str):
            self._set(state=LaneState.DOWN, reason=found)
            self._notice("lane_start_failed", {"detail": found})
            return None
        return found

    async def _look_after(self, process: ProcessKey, adopted: bool) -> None:
        """Bring the lane to its settings, then watch it until its control daemon has ended."""
        try:
            control = await self._stats.hold_this(process)
        except (ProcessLookupError, TimeoutError):
            return
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        self._watch.begin()
        self._judge.begin(adopted=adopted)
        self._control = control

        def has_ended() -> None:
            # Readable from now on for ever: once told is enough.
            loop.remove_reader(control.fileno())
            ended.set()

        loop.add_reader(control.fileno(), has_ended)
        checker = Owner()
        checker.keep(f"check {self.spec.name}", self._check)
        checker.keep(f"attend {self.spec.name}", lambda: self.service.attend(self.look_at_service))
        try:
            self._set(control=process, adopted=adopted, flapping=False)
            self._notice("lane_adopted" if adopted else "lane_started", {"control": process.pid})
            if self.quitting.is_set():
                with suppress(CommandFailedError):
                    await self.ask("quit")
            await self._settle()
            self._notice("lane_settled", {"adopted": adopted})
            with suppress(CommandFailedError):
                await self.setting_commands.look(adopted=adopted)
            await ended.wait()
        finally:
            await checker.end()
            loop.remove_reader(control.fileno())
            self._control = None
            self._settled = False
            self.setting_commands.forget(all_of_them=self.quitting.is_set())
            control.close()
            self._watch.end()
        self._set(state=LaneState.DOWN, reason=self._why_down(), control=None, servers=(), unasked={})
        if not self.quitting.is_set():
            self._notice("lane_down", {"control": process.pid})

    def _why_down(self) -> str:
        """Of the first report of an end: an incident, or none, follows from it."""
        control = self.report.control
        ended = self.report.reason if control is None else f"control daemon {control.pid} ended"
        return TOLD_TO_QUIT if self.quitting.is_set() else ended

    async def _settle(self) -> None:
        """Learn the greeting and replay the settings; what fails is not tried again, but shows in the state."""
        try:
            self.greeting = await command.greeting(self.spec.pipe_directory, self.spec.command_deadline)
            await self.setting_commands.replay()
        except (CommandFailedError, LeverError) as error:
            self._notice("lane_settings_failed", {"detail": str(error)})
        self._settled = True
        self._wake()
        await self.fresh()

    async def _check(self) -> None:
        while True:
            with suppress(TimeoutError):
                # How long a fault lasted tells triage which clients' work its end has ended.
                recent = self.report.state is LaneState.FAULT and time.time() < self.report.since + _RECENT
                async with asyncio.timeout(_FAULT_POLL if recent else self.spec.check_interval):
                    await self._prompted.wait()
            self._prompted.clear()
            await self.fresh()

    async def _observe(self) -> LaneReport:
        """One look at the evidence. Never raises: what cannot be known is a state."""
        if not self.control_alive():
            if self.report.state is not LaneState.INITIALIZING:
                self._set(state=LaneState.DOWN, reason=self._why_down())
            return self.report
        if self.quitting.is_set() or not self._settled:
            return self.report
        control = self._control
        self.service.asked()
        try:
            if self.greeting is None:
                self.greeting = await command.greeting(self.spec.pipe_directory, self.spec.command_deadline)
            servers = await self._watch.observe()
        except CommandFailedError as error:
            silent = isinstance(error, CommandTimeoutError)
            if self._control is not control:
                return self.report
            if isinstance(error, command.CommandDroppedError):
                self.service.answered()
            if self.control_alive():
                unsure = "does not answer" if silent else "cannot be asked"
                self._report(LaneState.UNKNOWN, f"the control daemon {unsure}: {error}", self.report.servers)
            return self.report
        if self._control is not control:
            return self.report  # The answer of a daemon that has ended says nothing of its successor.
        self.service.answered()
        self._report(*lane_state.decide(servers), servers)
        return self.report

    def _report(self, state: LaneState, reason: str, servers: tuple[Server, ...]) -> None:
        """Report what the control daemon said last, unless clients or sensors know better."""
        self._said = state, reason
        before = self.report.doubt
        self._set(servers=servers, **self._judge.judge(state, reason, servers))
        if bool(before) is not bool(self.report.doubt):
            self._notice("lane_doubted", {"detail": self.report.doubt or "no longer"})

    def look_at_service(self) -> None:
        """Judge the lane anew, as something has become of a client or a server."""
        if self._settled and self.control_alive() and not self.quitting.is_set():
            self._report(*self._said, self.report.servers)

    def _look_soon(self) -> None:
        """Have the lane judged after what is ready to run: a verdict comes first. Newcomers are held from now on."""
        asyncio.get_running_loop().call_soon(self.look_at_service)

    async def _running(self) -> tuple[ProcessKey, ...]:
        return tuple(server.process for server in (await self.fresh()).servers)

    def _settings_changed(self) -> None:
        self._set(settings=self.setting_commands.kept, unasked=self.setting_commands.unasked)

    def _set(self, **changes: Any) -> None:
        """Change the report. A new state gets its time, is published, and wakes the tasks that wait for it."""
        before = self.report
        if "state" in changes and changes["state"] is not before.state:
            changes |= {"since": time.time(), "fault_asked": self._watch.fault_asked}
        self.report = msgspec.structs.replace(before, **changes)
        if self.report.state is not before.state:
            told = {"state": self.report.state.value, "was": before.state.value, "reason": self.report.reason}
            self._notice("lane_state", told)
        if self.report != before:
            self._wake()

    def _wake(self) -> None:
        """Wake what waits for a change of the lane."""
        self._changed.set()
        self._changed = asyncio.Event()
