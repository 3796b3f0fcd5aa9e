"""`nvidia-smi`: the GPUs of this machine and their compute mode."""

import csv
import subprocess
from collections.abc import Sequence
from typing import Final

from mpsguard.dropin.plugin_config import Gpu

_QUERY: Final = "index,uuid,memory.total,compute_cap,mig.mode.current"
_DEADLINE: Final = 30.0
"""Seconds; a machine with eight GPUs without persistence mode takes ten."""


class NvidiaSmiError(Exception):
    """It is not there, failed, or said what is not known; one line."""


def gpus() -> list[Gpu]:
    """Return the GPUs; none where the driver finds none. Raises NvidiaSmiError."""
    said = _run(f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")
    found = []
    for row in csv.reader(said.splitlines(), skipinitialspace=True):
        try:
            index, uuid, memory, capability, mig = row
            major, minor = capability.split(".")
            # Memory that cannot be told ("[N/A]") has no limit, as with the plugin.
            mib = int(memory) if memory.isdigit() else 0
            found.append(Gpu(int(index), uuid, mib, (int(major), int(minor)), mig == "Enabled"))
        except ValueError:
            if "No devices were found" in said:
                return []
            raise NvidiaSmiError(f"nvidia-smi: {','.join(row)!r} is no line of {_QUERY}") from None
    return found


def set_compute_mode(uuids: Sequence[str], mode: str) -> None:
    """Set the compute mode of GPUs; raises NvidiaSmiError."""
    for uuid in uuids:
        _run("-i", uuid, "-c", mode)


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_DEADLINE,
            check=False,
        )
    except OSError as error:
        raise NvidiaSmiError(f"nvidia-smi: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise NvidiaSmiError(f"nvidia-smi {' '.join(arguments)}: not done within {_DEADLINE:g} s") from None
    if done.returncode != 0 and "No devices were found" not in done.stdout:
        said = " ".join(done.stdout.split())[:200]
        raise NvidiaSmiError(f"nvidia-smi {' '.join(arguments)}: status {done.returncode}: {said}")
    return done.stdout
