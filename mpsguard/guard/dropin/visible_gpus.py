"""CUDA_VISIBLE_DEVICES as CUDA reads it. A pure function."""

import itertools
import re
from typing import Final

from mpsguard.guard.config.values import is_gpu

_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_DIGITS: Final = 40
"""Of a number, which is no GPU's by then; Python reads some thousand at most."""
_BY_NAME: Final = ("GPU-", "MIG-")


def named(variable: str | None) -> list[str]:
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
