"""A program under the preload that answers requests, at a guard over the simulated daemon."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from mpsguard.preload import library
from tests.integration.guarded import Guarded, Program
from tests.integration.second_driver.bench import UVM_DEVICE, Bench


class Served:
    """A program that answers requests."""

    def __init__(self, guard: Guarded, built: Bench, mode: str, *, spare: int | None = None, **more: Any) -> None:
        """``spare``: MiB for a copy of its memory, made once: in a later one a fault would be the program's end."""
        settings = library.PreloadSettings(
            second_driver=library.SecondDriver(mode), second_spare=spare, second_epoch=100_000 if spare else None
        )
        base = {name: value for name, value in guard.environment.items() if not name.startswith(("LD_", "MPSGUARD_"))}
        environment = library.environment(settings, base, library=built.built / library.NAME)
        environment["MPSGUARD_ZONES_UVM_DEVICE"] = UVM_DEVICE
        environment["STAND_IN_KERNEL_LOG"] = guard.environment.get("KERNEL_LOG", "")
        self._report = guard.root / f"second-{id(self)}"
        environment["MPSGUARD_SECOND_REPORT"] = str(self._report)
        words = [str(built.built / "served"), str(built.built / "image.o")]
        self.program = Program(words, environment, stdin=subprocess.PIPE, **more)
        guard._programs.append(self.program)
        assert self.program.next()["event"] == "ready"

    def ask(self, request: str = "step") -> dict[str, Any]:
        stdin = self.program.process.stdin
        assert stdin is not None
        stdin.write(f"{request}\n".encode())
        stdin.flush()
        return self.program.next()

    def work_and_stand_still(self) -> None:
        """Compute, and wait until the preload has seen that the program stands still, and saved what it saves then.

        What the program says that it would survive is as old as the preload's last look: before this it may be of a
        time before the work. An idle one says that it would live also without a copy of its memory.
        """
        assert self.ask() == {"event": "done", "code": 0}
        assert self.ask("settle") == {"event": "done", "code": 0}

    def report(self) -> list[dict[str, Any]]:
        """What its second driver has written of its takeovers and moves: why a program was lost."""
        return [json.loads(line) for line in self._report.read_text().splitlines()] if self._report.exists() else []

    def client(self, guard: Guarded) -> dict[str, Any]:
        (found,) = [each for each in guard.clients() if each["process"]["pid"] == self.program.pid]
        return found
