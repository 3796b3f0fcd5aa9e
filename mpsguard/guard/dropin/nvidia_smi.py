"""`nvidia-smi`: the GPUs of this machine and their compute mode.

It ends with a status other than 0, and writes warnings above or below the rows, also where it answers for most GPUs: a
corrupted infoROM of one (status 14), a GPU that fell off the bus (15), cells such as ``[GPU requires reset]``. So each
row is read by itself, and what is none is named.
"""

import csv
import subprocess
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from mpsguard.guard.dropin.plugin_config import Gpu
from mpsguard.linux.nvidia import nvidia_gpus

_QUERY: Final = ("--query-gpu=index,uuid,memory.total,compute_cap,mig.mode.current", "--format=csv,noheader,nounits")
_DEADLINE: Final = 30.0
"""Seconds; a machine with eight GPUs without persistence mode takes ten."""

_NO_GPU: Final = "No devices were found"
_ABSENT: Final = frozenset({"N/A", "[N/A]", "Not Supported", "[Not Supported]"})
"""Cells of a GPU that has no such thing: GB10 shares the memory of the CPU, most GPUs cannot be partitioned."""
_MIG: Final = frozenset({"Enabled", "Disabled", *_ABSENT})
_WARNED: Final = 14
"""The status where all was done, and a GPU's infoROM is corrupted."""


class NvidiaSmiError(Exception):
    """It is not there, failed, or said what is not known; one line."""


class SmiOutput(NamedTuple):
    """What an output tells."""

    gpus: tuple[Gpu, ...]
    """The GPUs with a complete row, by the first one."""
    others: tuple[str, ...]
    """The other lines: of GPUs that cannot serve, warnings, errors."""


def read(output: str) -> SmiOutput:
    """Return what an output tells; a row in which a value could not be read is no GPU."""
    gpus: dict[str, Gpu] = {}
    others = []
    for line in filter(None, map(str.strip, output.splitlines())):
        found = _gpu(line)
        if found is None:
            others.append("".join(each if each.isprintable() else "?" for each in line)[:200])
        elif all(each.index != found.index for each in gpus.values()):
            gpus.setdefault(found.uuid, found)
    return SmiOutput(tuple(gpus.values()), tuple(others))


def _gpu(line: str) -> Gpu | None:
    try:
        [row] = csv.reader([line], skipinitialspace=True)
        index, uuid, memory, capability, mig = (cell.strip() for cell in row)
        major, minor = capability.split(".")
        # Memory that the GPU does not have of its own has no limit, as with the plugin; of one that is sick it would be
        # no limit by mistake.
        mib = 0 if memory in _ABSENT else int(memory)
        found = Gpu(int(index), uuid, mib, (int(major), int(minor)), mig == "Enabled")
    except (ValueError, csv.Error):
        return None
    return found if uuid.startswith("GPU-") and mig in _MIG and mib >= 0 and found.index >= 0 else None


def gpus(left_out: Callable[[str], None] | None = None) -> list[Gpu]:
    """Return the GPUs that can serve; none where the driver finds none.

    Args:
        left_out: is called with each line that tells of no GPU, or of one that cannot serve.

    Raises:
        NvidiaSmiError: it cannot be run, or tells of no GPU and gives another reason than that there is none.
    """
    status, said = _run(*_QUERY)
    answer = read(said)
    if not answer.gpus and answer.others and _NO_GPU not in said:
        # Some releases end at the first GPU that is lost; asked for the others by address, they may answer.
        asked = [_run("-i", address, *_QUERY)[1] for address in sorted(nvidia_gpus.addresses())]
        answer = read("\n".join([*answer.others, *asked]))
        if not answer.gpus:
            raise NvidiaSmiError(f"nvidia-smi: status {status}: {' '.join(answer.others)[:200]} ({_QUERY[0]})")
    for line in dict.fromkeys(answer.others):
        if left_out is not None and _NO_GPU not in line:
            left_out(line)
    return list(answer.gpus)


def set_compute_mode(uuids: Sequence[str], mode: str) -> None:
    """Set the compute mode of GPUs; raises NvidiaSmiError."""
    for uuid in uuids:
        status, said = _run("-i", uuid, "-c", mode)
        if status not in (0, _WARNED):
            raise NvidiaSmiError(f"nvidia-smi -i {uuid} -c {mode}: status {status}: {' '.join(said.split())[:200]}")


def _run(*arguments: str) -> tuple[int, str]:
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
    return done.returncode, done.stdout
