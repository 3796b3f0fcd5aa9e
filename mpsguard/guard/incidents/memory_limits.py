"""Memory limits of clients: what each was promised, and which exceed it by the driver's own word. Pure functions.

The driver takes a client's limit from its server and from the client's own environment. If the variable
CUDA_MPS_PINNED_DEVICE_MEM_LIMIT has more than one entry there, another GPU's, or nothing sensible, the client has no
limit (`0=2G,1=4G`, `1=4G`, `x=y`: 40 GiB under a limit of 10G; H100, 580.159.04). So the limit is measured.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from mpsguard.guard.config import DomainConfig
from mpsguard.guard.model import Client, LaneSettings
from mpsguard.guard.mps_values import limit_bytes
from mpsguard.guard.sensors.nvml_device import GpuIdentity

TOLERANCE: Final = 64 << 20
"""Bytes above a limit that are no excess. Driver and NVML both count a client's context (516 MiB on an H100): a client
that had taken all that it could get, 9,726 MiB of 10G, was 2 MiB above its limit by NVML (580.159.04). The rest is
room for other GPUs and drivers."""


class Promise(msgspec.Struct, frozen=True):
    """How much memory of a GPU a client was given."""

    limit: int
    """Bytes."""
    by_class: bool
    """Whether it is its service class that says so; else the domain's default."""
    shown: bool
    """Whether the client's server showed this limit when the client was handed over: else it may have another one."""


def promised(client: Client, settings: DomainConfig, defaults: LaneSettings) -> dict[str, Promise]:
    """Return what a client was promised, by GPU as the configuration names it.

    Args:
        client: the client.
        settings: its domain's configuration.
        defaults: its lane's settings when it came.
    """
    found = {
        gpu: Promise(size, False, False)
        for gpu, limit in defaults.pinned_device_memory_limit.items()
        if (size := limit_bytes(limit))
    }
    given = next((each for each in settings.classes if each.name == client.service_class), None)
    if given is not None:
        found |= {gpu: Promise(limit_bytes(limit), True, False) for gpu, limit in given.memory_limit.items()}
    for each in client.memory_limits:
        gpu, _, limit = each.partition("=")
        found[gpu] = Promise(limit_bytes(limit), True, True)
    return found


def gpu_named(name: str, domain_gpus: Sequence[str], gpus: Sequence[GpuIdentity]) -> GpuIdentity | None:
    """Return the GPU that a domain's configuration calls by a name; None if that cannot be told for certain.

    Args:
        name: number or UUID, as in a limit. A number counts the GPUs of the domain, as its control daemon does.
        domain_gpus: the domain's ``gpus``.
        gpus: all GPUs of the machine, by PCI address.
    """
    if name.isdecimal() and tuple(domain_gpus) != ("all",):
        if int(name) >= len(domain_gpus):
            return None
        name = domain_gpus[int(name)]
    if name.isdecimal():
        # CUDA counts the fastest GPU first: among equals, by PCI address.
        alike = len({each.model for each in gpus}) == 1
        return gpus[int(name)] if alike and int(name) < len(gpus) else None
    found = [each for each in gpus if each.uuid and each.uuid.lower().startswith(name.lower())]
    return found[0] if len(found) == 1 else None


def exceeds(size: int, limit: int) -> bool:
    """Return whether a client has more memory than the driver can have given it under a limit."""
    return size > limit + TOLERANCE
