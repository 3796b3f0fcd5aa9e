"""Which service class takes a client: decided from what the kernel says of it, and from what it asks for."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from mpsguard.guard.config import ServiceClass
from mpsguard.guard.mps_values import limit_bytes
from mpsguard.linux.cgroup_origin import origin
from mpsguard.linux.identity import is_root

PRIORITY_VARIABLE: Final = "CUDA_MPS_CLIENT_PRIORITY"
"""By it a client takes a better priority than its server's, which is no ceiling (measured, H100, 580.159.04)."""
MEMORY_VARIABLE: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
"""With an odd value in it a client has no limit of memory (`mpsguard.guard.incidents.memory_limits`)."""
CLASS_VARIABLE: Final = "MPSGUARD_CLASS"
"""Environment variable by which a standby chooses its class: its directory is that of all standbys."""
_LEVEL: Final = {"normal": 0, "below_normal": 1}
_OWN_LIMIT: Final = re.compile(r"([0-9]{1,3}|GPU-[0-9a-fA-F-]{1,40})=([0-9]{1,9}[GM])")
_MOST_DIGITS: Final = 9
"""Of a client's priority: what an int of the driver holds. Longer ones are no level."""


@dataclass(frozen=True)
class Identity:
    """A client as far as classes are concerned; all but the priority are the kernel's words."""

    user: int
    """Its uid; another number for root of a container (`UserKey`), of which the uid says little."""
    gid: int
    cgroup: str = ""
    priority: str | None = None
    """``CUDA_MPS_CLIENT_PRIORITY`` of the environment that it was started with: the client's own word."""


@dataclass(frozen=True)
class Assignment:
    """What became of a client."""

    service_class: ServiceClass | None
    """None: no class takes it, and it has what stock MPS gives."""
    refused: str = ""
    """Why it may not connect."""
    denied: str = ""
    """Why it has not the class that it chose."""
    lifted: bool = False
    """It takes a better priority than that of the class that was meant for it."""


def assign(classes: Sequence[ServiceClass], client: Identity, chosen: str | None) -> Assignment:
    """Return the class of a client.

    Args:
        classes: in the order of the configuration; the first that takes the client has it.
        client: the client.
        chosen: the class in which directory it has connected; None in the domain's own.
    """
    by_name = {each.name: each for each in classes}
    meant = next((each for each in classes if takes(each, client)), None)
    meant = meant or next((each for each in classes if each.default), None)
    denied = ""
    if chosen is not None:
        wanted = by_name[chosen]
        if wanted is meant or may_choose(wanted, client):
            meant = wanted
        else:
            denied = f"user {client.user} may not choose class {chosen}"
    if meant is None or not _lifts_itself(meant, client):
        return Assignment(meant, denied=denied)
    if meant.lifted == "refuse":
        why = f"{PRIORITY_VARIABLE}={client.priority} is better than the priority of class {meant.name}"
        return Assignment(meant, refused=why, denied=denied, lifted=True)
    return Assignment(by_name.get(meant.lifted, meant), denied=denied, lifted=True)


def named(classes: Sequence[ServiceClass], environment: Mapping[str, str]) -> str | None:
    """Return the class that a standby names in its environment, if there is one of that name."""
    name = environment.get(CLASS_VARIABLE)
    return name if any(each.name == name for each in classes) else None


def takes(service_class: ServiceClass, client: Identity) -> bool:
    """Return whether a class takes a client without being chosen: each of its lists has an entry for it."""
    made_by = origin(client.cgroup)
    container = made_by.container or ""
    tests = [
        (service_class.uids, client.user in service_class.uids),
        (service_class.gids, client.gid in service_class.gids),
        (service_class.cgroups, any(fnmatchcase(client.cgroup, each) for each in service_class.cgroups)),
        (service_class.containers, any(container.startswith(each) for each in service_class.containers)),
        (service_class.pods, made_by.pod in service_class.pods),
        (service_class.slurm_jobs, made_by.job in service_class.slurm_jobs),
    ]
    given = [found for entries, found in tests if entries]
    return bool(given) and all(given)


def may_choose(service_class: ServiceClass, client: Identity) -> bool:
    """Return whether a client may choose a class by its directory."""
    if is_root(client.user) or service_class.choosers == "anyone" or takes(service_class, client):
        return True
    return client.user in service_class.choosers


def keeps_limits(service_class: ServiceClass, asked: str | None) -> bool:
    """Return whether ``asked``, a client's own `MEMORY_VARIABLE`, leaves it with no more memory than its class gives.

    It does for certain if the variable is not set, or has one entry, for the one GPU that the class limits, and that is
    no larger.
    """
    if asked is None or not service_class.memory_limit:
        return True
    match = _OWN_LIMIT.fullmatch(asked)
    if match is None or len(service_class.memory_limit) != 1:
        return False
    [(gpu, limit)] = service_class.memory_limit.items()
    return match[1] == gpu and limit_bytes(match[2]) <= limit_bytes(limit)


def needs_entries(classes: Sequence[ServiceClass]) -> bool:
    """Return whether the client's files in /proc must be read before it can be assigned."""
    return any(
        each.cgroups
        or each.containers
        or each.pods
        or each.slurm_jobs
        or each.memory_limit
        or each.priority == "below_normal"
        for each in classes
    )


def _lifts_itself(service_class: ServiceClass, client: Identity) -> bool:
    asked = (client.priority or "").strip()
    # str.strip takes off more than int() does ("\x1f"), and isdecimal has other digits than the driver.
    if service_class.priority is None or not (asked.isascii() and asked.isdecimal() and len(asked) <= _MOST_DIGITS):
        return False
    return int(asked) < _LEVEL[service_class.priority]
