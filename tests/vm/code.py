"""A module's machine code, function by function, to tell where the patched module differs from the stock one."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

_PADDING = frozenset({"nop", "nopw", "nopl", "int3", "data16", "cs", "xchg"})
"""Between functions, and before the targets of jumps."""


def functions(module: Path) -> dict[str, list[str]]:
    """The instructions of each function, without their operands: offsets into structures may well differ."""
    command = ["objdump", "-d", "--no-show-raw-insn", "-j", ".text", str(module)]
    listing = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120.0).stdout
    found: dict[str, list[str]] = {}
    current: list[str] = []
    for line in listing.splitlines():
        if head := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            current = found.setdefault(head[1], [])
        elif (instruction := re.match(r"\s+[0-9a-f]+:\t(\S+)", line)) and instruction[1] not in _PADDING:
            current.append(instruction[1])
    return found
