"""Changes of the configuration: which keys differ, and which of them a running guard can take over."""

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from mpsguard.guard.config.types import Config, DomainConfig

LIVE: Final = (
    "guard.log_level",
    "domain.unwatched",
    "domain.repetition",
    "domain.policy.max_connections",
    "domain.policy.max_parked",
    "domain.policy.park_deadline",
    "domain.policy.handshake_deadline",
    "domain.policy.user_command_deadline",
    "domain.policy.command_line_idle",
    "domain.policy.privileged_containers",
    "domain.lifelines.*",
    "domain.remedies.*",
)
"""Keys that a reload applies, without the name of a domain. All others need a restart of the guard, which costs no
client anything."""

_NAME: Final = re.compile(r"\[[^]]*\]")


def changed_keys(old: Config, new: Config) -> tuple[str, ...]:
    """Return the keys that differ, such as ``domain[default].policy.max_parked``; ``domain`` if one came or went."""
    return tuple(_changes(old, new))


def needing_restart(keys: tuple[str, ...]) -> tuple[str, ...]:
    """Return those of ``keys`` that a running guard cannot take over."""
    return tuple(key for key in keys if not any(fnmatchcase(_NAME.sub("", key), live) for live in LIVE))


def _changes(old: Config, new: Config) -> Iterator[str]:
    yield from _fields("guard", old.guard, new.guard)
    yield from _fields("vault", old.vault, new.vault)
    # In their order: commands list them so.
    if [domain.name for domain in old.domain] != [domain.name for domain in new.domain]:
        yield "domain"
        return
    for before, after in zip(old.domain, new.domain, strict=True):
        yield from _fields(f"domain[{before.name}]", before, after)


def _fields(at: str, old: msgspec.Struct, new: msgspec.Struct) -> Iterator[str]:
    for field in msgspec.structs.fields(old):
        before, after = getattr(old, field.name), getattr(new, field.name)
        key = f"{at}.{field.encode_name}"
        if before == after:
            continue
        if isinstance(before, msgspec.Struct) and isinstance(old, DomainConfig):
            yield from _fields(key, before, after)
        else:
            yield key
