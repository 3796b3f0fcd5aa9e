"""Users' commands that set something at a lane: sent with the levers at rest, and kept as they were asked for."""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from mpsguard.guard import mps_values
from mpsguard.guard.lanes import settings
from mpsguard.guard.lanes.command import Command, CommandFailedError, CommandReply
from mpsguard.guard.lanes.levers import ServerLevers
from mpsguard.guard.lanes.settings import Setting, SettingsStore
from mpsguard.guard.model import LaneSettings, Notify
from mpsguard.linux.identity import ProcessKey

Ask = Callable[[Command, float | None], Awaitable[CommandReply]]

_NOTHING: Final[dict[str, str]] = {}


class SettingCommands:
    """Owns what is to be replayed at each start of one lane's control daemon."""

    def __init__(
        self,
        ask: Ask,
        *,
        deadline: float,
        store: SettingsStore,
        levers: ServerLevers,
        servers: Callable[[], Awaitable[tuple[ProcessKey, ...]]],
        changed: Callable[[], None],
        notice: Notify,
    ) -> None:
        """Create it, and load what is kept.

        Args:
            ask: sends a command to the control daemon, with a deadline in seconds.
            deadline: for the guard's own questions, in seconds.
            store: what is kept.
            levers: of the lane's servers.
            servers: returns those that run.
            changed: is called when `kept` or `unasked` has changed.
            notice: is told of settings that users make.
        """
        self._ask = ask
        self._deadline = deadline
        self._store = store
        self._levers = levers
        self._servers = servers
        self._changed = changed
        self._notice = notice
        self.kept: LaneSettings = store.load()
        self.unasked = _NOTHING
        """Defaults that the control daemon was given before there was a guard, or past it, as it shows them."""

    async def run(
        self, command: Command, user: int, deadline: float, *, keeps: bool
    ) -> tuple[CommandReply, Setting | None]:
        """Send a user's command that moves a lever (`settings.moves_lever`), and keep what the daemon has taken.

        Args:
            command: the command.
            user: the one that it counts for.
            deadline: seconds.
            keeps: whether a default is kept: it is not what 535 takes from any user.

        Returns:
            The answer, and the default that is kept; None if there is none.

        Raises:
            CommandFailedError: the daemon does not answer, or too many such commands wait.
        """
        asked = settings.asked_by(command.line)
        async with self._levers.left_alone(user):
            server = await self._prepare(asked)
            reply = await self._ask(command, deadline)
            if asked is None or not settings.was_taken(asked, reply):
                return reply, None
            if server is not None:
                self._levers.rests_at(server, asked.levers)
            if asked.server is not None or not keeps:
                return reply, None
            if asked.is_named and not await self._has(asked):
                asked = settings.of_first_device(asked)
            self._keep(asked)
            return reply, asked

    async def repeat(self, command: Command, asked: Setting, user: int) -> None:
        """Make a default that the domain's other lane has taken this lane's too; it is replayed if it fails now.

        Raises:
            CommandFailedError: the daemon did not answer; it has the setting once it is started again.
        """
        async with self._levers.left_alone(user):
            await self._prepare(asked)
            self._keep(asked)
            await self._ask(command, self._deadline)

    async def look(self, *, adopted: bool) -> None:
        """See what an adopted control daemon has that no guard was asked for; raises CommandFailedError."""
        if not adopted:
            return
        shown = {query: (await self._ask(Command(query), self._deadline)).lines for query in settings.QUERIES}
        self.unasked = settings.unasked(self.kept, shown)
        self._changed()

    async def replay(self) -> None:
        """Give a control daemon what is kept; raises CommandFailedError, and LeverError of levers to be put back."""
        for line in settings.replay_commands(self.kept):
            await self._ask(Command(line), self._deadline)
        await self._levers.restore()
        for each in settings.named_devices(self.kept):
            if not await self._has(each):
                self._notice(
                    "lane_settings_failed", {"detail": f"{each.device}: the driver has limits by number alone"}
                )

    def forget(self, *, all_of_them: bool) -> None:
        """The control daemon has ended, and with it what no guard was asked for.

        Args:
            all_of_them: what users set as well: "the set value is lost if a quit command is executed"
                (nvidia-cuda-mps-control(1)).
        """
        self.unasked = _NOTHING
        if all_of_them:
            self._store.forget()

    async def _prepare(self, asked: Setting | None) -> ProcessKey | None:
        """Have the levers know what they rest at although ``asked`` is sent now; return the server that it is for."""
        if asked is None:
            return None
        if asked.server is None and asked.levers.priority is not None:
            servers: tuple[ProcessKey, ...] = ()
        else:
            servers = await self._servers()
        if asked.server is None:
            await self._levers.default_will_change(servers, asked.levers)
            return None
        server = next((each for each in servers if each.pid == asked.server), None)
        if server is not None:
            self._levers.will_change(server, asked.levers)
        return server

    async def _has(self, asked: Setting) -> bool:
        """Whether the daemon knows the device that a limit names; True if it does not answer."""
        none = msgspec.structs.replace(asked, device=mps_values.NO_DEVICE)
        try:
            replies = [await self._ask(Command(each.query), self._deadline) for each in (asked, none)]
        except CommandFailedError:
            return True
        return [settings.shows_limit(each) for each in replies] == [True, False]

    def _keep(self, asked: Setting) -> None:
        kept = settings.with_setting(self.kept, asked)
        self.unasked = {name: shown for name, shown in self.unasked.items() if f"get_default_{name}" != asked.query}
        if list(settings.replay_commands(kept)) != list(settings.replay_commands(self.kept)):
            self.kept = kept
            try:
                self._store.save(kept)
            except OSError as error:
                self._notice("settings_not_saved", {"detail": str(error)})
            self._notice("lane_setting", {"setting": asked.name, "device": asked.device})
        self._changed()
