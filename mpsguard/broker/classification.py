"""Which service class takes a client: decided from what the kernel says of it, and from what it asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from mpsguard.cgroup_origin import origin
from mpsguard.config import ServiceClass

PRIORITY_VARIABLE: Final = "CUDA_MPS_CLIENT_PRIORITY"
"""By it a client takes a better priority than its server's, which is no ceiling (measured, H100, 580.159.04)."""
CLASS_VARIABLE: Final = "MPSGUARD_CLASS"
"""Environment variable by which a standby chooses its class: its directory is that of all standbys."""
_LEVEL: Final = {"normal": 0, "below_normal": 1}
_MOST_DIGITS: Final = 9
"""Of a client's priority: what an int of the driver holds. Longer ones are no level."""


@dataclass(frozen=True)
class Identity:
    """A client as far as classes are concerned; all but the priority are the kernel's words."""

    uid: int
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
            denied = f"uid {client.uid} may not choose class {chosen}"
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
        (service_class.uids, client.uid in service_class.uids),
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
    if client.uid == 0 or service_class.choosers == "anyone" or takes(service_class, client):
        return True
    return client.uid in service_class.choosers


def needs_entries(classes: Sequence[ServiceClass]) -> bool:
    """Return whether the client's files in /proc must be read before it can be assigned."""
    return any(
        each.cgroups or each.containers or each.pods or each.slurm_jobs or each.priority == "below_normal"
        for each in classes
    )


def _lifts_itself(service_class: ServiceClass, client: Identity) -> bool:
    asked = (client.priority or "").strip()
    # str.strip takes off more than int() does ("\x1f"), and isdecimal has other digits than the driver.
    if service_class.priority is None or not (asked.isascii() and asked.isdecimal() and len(asked) <= _MOST_DIGITS):
        return False
    return int(asked) < _LEVEL[service_class.priority]
