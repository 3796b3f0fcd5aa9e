"""The C programs that run inside the virtual machine, built static against a driver tree's ioctl headers."""

from __future__ import annotations

import os
import subprocess
import threading
from pathlib import Path

from tests.harness.kept import KEPT, digest
from tests.vm.workshop import MOCK, PATCH

SOURCES = Path(__file__).resolve().parent / "guest"
CASES = (
    *("scenario", "memory_cases", "hole_cases", "refusal_cases", "policy_cases", "ending_cases"),
    *("race_cases", "hmm_cases", "overrun_cases", "address_cases", "storm_cases", "block_cases"),
    *("report_cases", "client", "reports", "recycled"),
)
PROGRAMS = {
    "scenario": CASES,
    "campaign": ("campaign", "client", "reports"),
    "stress": ("stress", "client", "reports"),
    "builtin": ("builtin", "client"),
    "agent": ("agent", "client", "reports"),
    "recycler": ("recycler", "recycled", "client", "reports"),
    "service": ("service", "client"),
}
OURS = PATCH / "source"
"""Where the ioctl of our own test is declared."""
COMPILE_DEADLINE_S = 120.0


def program(name: str, tree: Path) -> Path:
    """The program, built if it is not there yet."""
    key = digest(SOURCES, MOCK, OURS, tree / "nvidia-uvm", tree / "common" / "inc")
    built = KEPT / "guest" / key / name
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        # Two threads may build it at once: the stock and the patched module are measured side by side.
        fresh = built.with_suffix(f".new-{os.getpid()}-{threading.get_ident()}")
        subprocess.run(
            [
                *("gcc", "-O1", "-static", "-std=gnu11", "-Wall", "-Wextra", "-Wno-missing-field-initializers"),
                "-Wno-format-truncation",
                *("-Werror", f"-I{tree / 'nvidia-uvm'}", f"-I{tree / 'common' / 'inc'}", f"-I{MOCK}", f"-I{OURS}"),
                *("-o", str(fresh), *(str(SOURCES / f"{part}.c") for part in PROGRAMS[name])),
            ],
            check=True,
            timeout=COMPILE_DEADLINE_S,
        )
        fresh.rename(built)
    return built
