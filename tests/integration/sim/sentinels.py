"""A sentinel on a simulated lane, and what its dump is made from."""

import json
from pathlib import Path
from typing import Any

from tests.integration.guarded import Guarded, Program, wait_for


def logged(guarded: Guarded, kind: str) -> list[dict[str, Any]]:
    """The guard's own log, read from its file: nearly at once, where a command would take long."""
    lines = (guarded.root / "guard.log").read_text().splitlines()
    return [line for line in map(json.loads, filter(None, lines)) if line.get("event") == kind]


def sentinel(guarded: Guarded, count: int = 1) -> int:
    """The pid of the sentinel once it stands, for the ``count``-th time."""
    found = wait_for("a sentinel", lambda: said if len(said := logged(guarded, "sentinel_ready")) >= count else None)
    pid: int = found[count - 1]["pid"]
    return pid


def code_of(client: Program) -> int:
    """An address in what the client has reserved for the GPU."""
    spans = [line.split()[0].split("-") for line in Path(f"/proc/{client.pid}/maps").read_text().splitlines()
             if " ---p 00000000 00:00 0" in line]  # fmt: skip
    first, _ = max(((int(first, 16), int(end, 16)) for first, end in spans), key=lambda span: span[1] - span[0])
    return first + 0x3840
