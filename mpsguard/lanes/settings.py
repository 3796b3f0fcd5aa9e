"""A lane's settings as the vendor's commands: what to replay after a restart, and what a command has changed."""

import re
from typing import Final

import msgspec

from mpsguard.lanes.levers import limit_bytes, same_share
from mpsguard.model import LaneSettings

_PERCENTAGE: Final = "active_thread_percentage"
_PRIORITY: Final = "client_priority"
_MEMORY: Final = "device_pinned_mem_limit"
_SET_DEFAULT: Final = re.compile(rf"\s*set_default_({_PERCENTAGE}|{_PRIORITY}|{_MEMORY})\s+(\S+)(?:\s+(\S+))?")
_SET_LEVER: Final = re.compile(rf"\s*set_(?:default_)?(?:{_PERCENTAGE}|{_PRIORITY}|{_MEMORY})\b")
_MEMORY_VALUE: Final = re.compile(r"[1-9][0-9]{0,8}[GM]")


class Setting(msgspec.Struct, frozen=True):
    """One default of a control daemon: the vendor's name for it and, for the memory limit, the device."""

    name: str
    device: str | None = None
    asked: str = ""
    """The value that a command named for it."""

    @property
    def query(self) -> str:
        """The command that reads it back."""
        return f"get_default_{self.name}" + (f" {self.device}" if self.device is not None else "")


def replay_commands(settings: LaneSettings) -> list[str]:
    """The commands that bring a fresh control daemon to ``settings``."""
    commands = []
    if settings.active_thread_percentage is not None:
        commands.append(f"set_default_{_PERCENTAGE} {settings.active_thread_percentage:g}")
    commands += [f"set_default_{_MEMORY} {dev} {value}" for dev, value in settings.pinned_device_memory_limit.items()]
    if settings.client_priority is not None:
        commands.append(f"set_default_{_PRIORITY} {settings.client_priority}")
    return commands


def moves_lever(command: str) -> bool:
    """Return whether ``command`` may change a lever of a server, or a default that is one."""
    return _SET_LEVER.match(command) is not None


def setting_touched_by(command: str) -> Setting | None:
    """The default that ``command`` may have changed, or None."""
    match = _SET_DEFAULT.match(command)
    if match is None:
        return None
    name, first, second = match.groups()
    return Setting(name, first, second or "") if name == _MEMORY else Setting(name, asked=first)


def was_taken(setting: Setting, lines: tuple[str, ...]) -> bool:
    """Return whether the control daemon's answer to ``setting.query`` is the value that was asked for.

    Its exit status does not tell: it is 0 also for a command that it refuses (535 to 580).
    """
    value = lines[0].strip() if lines else ""
    if setting.name == _MEMORY:
        shown = limit_bytes(value)
        return shown is not None and shown == limit_bytes(setting.asked)
    try:
        return same_share(float(value), float(setting.asked))
    except ValueError:
        return False


def with_read_back(settings: LaneSettings, setting: Setting, lines: tuple[str, ...]) -> LaneSettings:
    """``settings`` with what the control daemon answered to ``setting.query``; unchanged if that is no value."""
    value = lines[0].strip() if lines else ""
    try:
        if setting.name == _PERCENTAGE:
            share = float(value)
            return msgspec.structs.replace(settings, active_thread_percentage=share) if 0 < share <= 100 else settings
        if setting.name == _PRIORITY:
            return msgspec.structs.replace(settings, client_priority=int(value))
    except ValueError:
        return settings
    if setting.device is None or not _MEMORY_VALUE.fullmatch(value):
        return settings
    limits = {**settings.pinned_device_memory_limit, setting.device: value}
    return msgspec.structs.replace(settings, pinned_device_memory_limit=limits)
