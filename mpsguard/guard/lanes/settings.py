"""A lane's settings as the vendor's commands, and on disk: what to replay after a restart, and what a command has set.

What counts is what was asked for: the daemon shows less of it (whole GiB, one decimal), so nothing that it shows is
kept, or compared with what was asked for. Whether it has taken a value follows from its words, and from its own way to
read values (`mps_values`).
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.guard import mps_values
from mpsguard.guard.lanes.command import CommandReply, is_refusal
from mpsguard.guard.lanes.levers import Levers
from mpsguard.guard.model import LaneSettings
from mpsguard.linux.files.directory import replace_file

_PERCENTAGE: Final = "active_thread_percentage"
_PRIORITY: Final = "client_priority"
_MEMORY: Final = "device_pinned_mem_limit"
_DEFAULTS: Final = {f"set_default_{name}": name for name in (_PERCENTAGE, _PRIORITY, _MEMORY)}
_OF_SERVERS: Final = {f"set_{name}": name for name in (_PERCENTAGE, _MEMORY)}
_LONGEST: Final = 32
"""Characters of a limit that are kept as they are: more than any sensible one has."""


class Setting(msgspec.Struct, frozen=True):
    """What a command asks a control daemon to set: a default, or a lever of one server."""

    name: str
    """The vendor's, without ``set_default_``."""
    value: str
    """As the command has it."""
    device: str | None = None
    """Of a limit of memory: the ordinal, or the UUID as the command has it."""
    server: int | None = None
    """Pid of the server; None: a default."""

    @property
    def query(self) -> str:
        """The command that shows a default."""
        return f"get_default_{self.name}" + (f" {self.device}" if self.device is not None else "")

    @property
    def is_named(self) -> bool:
        """Whether it names its device by a UUID."""
        return self.device is not None and mps_values.is_named(self.device)

    @property
    def levers(self) -> Levers:
        """What a server has of it."""
        if self.name == _PERCENTAGE:
            return Levers(mps_values.percentage(self.value))
        if self.name == _PRIORITY:
            return Levers(priority=mps_values.priority(self.value))
        return Levers(limits={self.device or "0": _kept_limit(self.value)})


def replay_commands(settings: LaneSettings) -> list[str]:
    """The commands that bring a fresh control daemon to ``settings``."""
    commands = []
    if settings.active_thread_percentage is not None:
        share = mps_values.percentage_text(settings.active_thread_percentage)
        commands.append(f"set_default_{_PERCENTAGE} {share}")
    commands += [f"set_default_{_MEMORY} {dev} {value}" for dev, value in settings.pinned_device_memory_limit.items()]
    if settings.client_priority is not None:
        commands.append(f"set_default_{_PRIORITY} {settings.client_priority}")
    return commands


def moves_lever(command: str) -> bool:
    """Return whether ``command`` may change a lever of a server, or a default that is one."""
    name, _ = mps_values.command(command)
    return name in _DEFAULTS or name in _OF_SERVERS


def asked_by(command: str) -> Setting | None:
    """Return what ``command`` asks for, read as the daemon reads it; None if it can set nothing."""
    name, text = mps_values.command(command)
    if name in _OF_SERVERS:
        server, text = mps_values.integer(text), mps_values.behind_integer(text)
        return _asked(_OF_SERVERS[name], text, server)
    return _asked(_DEFAULTS[name], text, None) if name in _DEFAULTS else None


def _asked(name: str, text: str, server: int | None) -> Setting | None:
    first, second, *_ = [*mps_values.words(text), ""]
    if name != _MEMORY:
        return Setting(name, first, server=server)
    if mps_values.is_named(first):
        return Setting(name, second, first, server)
    found = mps_values.memory_limit(text)
    return None if found is None else Setting(name, found[1], str(found[0]), server)


def of_first_device(setting: Setting) -> Setting:
    """Return what a daemon without UUIDs takes for a setting that has one: no limit on the first device."""
    return msgspec.structs.replace(setting, device="0", value="")


def was_taken(setting: Setting, reply: CommandReply) -> bool:
    """Return whether the control daemon has taken a value, by its answer to the command.

    Its exit status does not tell: it is 0 also for a command that it refuses (535 to 580). For a percentage that it
    refuses it shows the old one, without a word.
    """
    if is_refusal(reply):
        return False
    if setting.name == _PERCENTAGE:
        return mps_values.percentage(setting.value) is not None
    return setting.name != _PRIORITY or mps_values.priority(setting.value) is not None


def shows_limit(reply: CommandReply) -> bool:
    """Return whether the daemon's answer to a query is a limit of memory: some say nothing where there is none (535,
    550), others a sentence (580)."""
    return bool(reply.lines) and mps_values.limit_bytes(reply.lines[0]) != 0


def named_first(settings: LaneSettings) -> LaneSettings:
    """Return ``settings`` with the limits by UUID first.

    A daemon without UUIDs takes each for a command that takes the first device's limit away.
    """
    limits = sorted(settings.pinned_device_memory_limit.items(), key=lambda item: not mps_values.is_named(item[0]))
    return msgspec.structs.replace(settings, pinned_device_memory_limit=dict(limits))


def named_devices(settings: LaneSettings) -> list[Setting]:
    """Return the limits by UUID among ``settings``."""
    return [
        Setting(_MEMORY, limit, device)
        for device, limit in settings.pinned_device_memory_limit.items()
        if mps_values.is_named(device) and mps_values.limit_bytes(limit)
    ]


def with_setting(settings: LaneSettings, setting: Setting) -> LaneSettings:
    """Return ``settings`` with a default that was taken, the last one last: a later one may undo an earlier one."""
    if setting.name == _PERCENTAGE:
        return msgspec.structs.replace(settings, active_thread_percentage=mps_values.percentage(setting.value))
    if setting.name == _PRIORITY:
        return msgspec.structs.replace(settings, client_priority=mps_values.priority(setting.value))
    device = setting.device or "0"
    others = {dev: value for dev, value in settings.pinned_device_memory_limit.items() if dev != device}
    return msgspec.structs.replace(settings, pinned_device_memory_limit={**others, device: _kept_limit(setting.value)})


def levers_of(settings: LaneSettings) -> Levers:
    """Return what a server has of settings that were in force when it started."""
    return Levers(settings.active_thread_percentage, settings.client_priority, settings.pinned_device_memory_limit)


def _kept_limit(value: str) -> str:
    """Return a limit as it was asked for; in other words if these would not survive a file or a terminal."""
    if value.isascii() and value.isprintable() and 0 < len(value) <= _LONGEST:
        return value
    return mps_values.limit_text(mps_values.limit_bytes(value))


def unasked(settings: LaneSettings, shown: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return the defaults that a daemon shows, that are not the vendor's, and that are not among ``settings``.

    Args:
        settings: what was asked for.
        shown: queries and their answers.
    """
    of_vendor = {f"get_default_{_PERCENTAGE}": "100.0", f"get_default_{_PRIORITY}": "0"}
    known = {asked.query for line in replay_commands(settings) if (asked := asked_by(line)) is not None}
    return {
        query.removeprefix("get_default_"): lines[0]
        for query, lines in shown.items()
        if query not in known and lines and lines[0] != of_vendor.get(query) and lines[0][:1].isdecimal()
    }


QUERIES: Final = (
    f"get_default_{_PERCENTAGE}",
    f"get_default_{_PRIORITY}",
    *(f"get_default_{_MEMORY} {device}" for device in range(mps_values.DEVICES)),
)
"""The defaults that a daemon may have been given before there was a guard."""


class _Stored(msgspec.Struct, frozen=True):
    configured: LaneSettings
    """The configuration's settings at the time: another configuration takes over from what users had set since."""
    desired: LaneSettings


class SettingsStore:
    """Remembers one lane's desired settings in ``path``."""

    def __init__(self, path: Path, configured: LaneSettings) -> None:
        self._path = path
        self._configured = named_first(configured)

    def load(self) -> LaneSettings:
        """What users set last, if the configuration has not changed since; else the configuration's settings."""
        try:
            stored = msgspec.json.decode(self._path.read_bytes(), type=_Stored)
        except (OSError, msgspec.DecodeError):
            return self._configured
        return stored.desired if stored.configured == self._configured else self._configured

    def forget(self) -> None:
        """Forget what users set, as far as the file can be removed."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)

    def save(self, desired: LaneSettings) -> None:
        """Replace the file atomically; OSError if it cannot be written."""
        replace_file(self._path, msgspec.json.encode(_Stored(self._configured, desired)))
