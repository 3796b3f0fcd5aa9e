"""What the vendor's daemon takes from its environment at its start: settings, and the GPUs it sees. Pure functions.

The daemons of 535.261.03 and 550.163.01 read the share and the priority themselves; what they refuse they name in
control.log, and start. The limits of memory are the servers', which inherit them (MPS manual, environment variables).
"""

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from mpsguard.guard import mps_values
from mpsguard.guard.config.values import is_gpu

_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_DIGITS: Final = 40
"""Of a number, which is no GPU's by then; Python reads some thousand at most."""
_BY_NAME: Final = ("GPU-", "MIG-")
PERCENTAGE: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PRIORITY: Final = "CUDA_MPS_CLIENT_PRIORITY"
LIMITS: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"


class InitialSettings(NamedTuple):
    """What `[domain.settings]` of a drop-in's guard has."""

    settings: dict[str, Any]
    notes: tuple[str, ...]
    """What is left out as the vendor's daemon would, one line each."""


def initial_settings(environment: Mapping[str, str]) -> InitialSettings:
    """Return the settings in an environment."""
    settings: dict[str, Any] = {}
    notes = []
    if PERCENTAGE in environment:
        share = mps_values.percentage(environment[PERCENTAGE].lstrip(mps_values.BLANKS))
        if share is None:
            notes.append(f"{PERCENTAGE} should be above 0 and at most 100, and is ignored: {environment[PERCENTAGE]!r}")
        else:
            settings["active_thread_percentage"] = share
    if PRIORITY in environment:
        priority = mps_values.priority(environment[PRIORITY].lstrip(mps_values.BLANKS))
        if priority is None:
            notes.append(f"{PRIORITY} should be 0 or 1, and is ignored: {environment[PRIORITY]!r}")
        else:
            settings["client_priority"] = priority
    limits = {}
    # As a rule there is no entry behind a last comma.
    for entry in filter(None, map(str.strip, environment.get(LIMITS, "").split(","))):
        device, _, limit = (part.strip() for part in entry.partition("="))
        size = mps_values.limit_bytes(limit)
        if is_gpu(device) and size:
            limits[device] = mps_values.limit_text(size)
        else:
            notes.append(f"{LIMITS} should be GPU=LIMIT, such as 0=3G,1=512M, and is ignored: {entry!r}")
    if limits:
        settings["pinned_device_memory_limit"] = limits
    return InitialSettings(settings, tuple(notes))


def visible_gpus(variable: str | None) -> list[str]:
    """Return the GPUs that a CUDA_VISIBLE_DEVICES names, in its order; none where it shows none, or is not set.

    What follows the first invalid entry is ignored (CUDA programming guide, environment variables). Names count if the
    first entry is one, else the numbers that entries begin with; a GPU that is named twice hides all of them
    (pytorch/pytorch #92315, compared with driver 525.60.13, and #84879). CUDA checks whether it is there.
    """
    if variable is None:
        return []
    entries = [entry.strip() for entry in variable.split(",")]
    prefix = next((prefix for prefix in _BY_NAME if entries[0].startswith(prefix)), None)
    if prefix is None:
        entries = [_number(entry) for entry in entries]
    gpus = list(itertools.takewhile(lambda gpu: is_gpu(gpu) and gpu.startswith(prefix or ""), entries))
    return gpus if len(set(gpus)) == len(gpus) else []


def _number(entry: str) -> str:
    """Return the number that an entry begins with, as strtol(3) reads it; empty without one."""
    found = _NUMBER.match(entry)
    return str(int(found[0][:_DIGITS])) if found else ""
