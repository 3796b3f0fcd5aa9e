"""The second driver of a program: the environment that switches it on, and what it reports of its takeover."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from tests.bench.core.bench import Target
from tests.bench.core.errors import SuiteError


class Mode(StrEnum):
    """When the second driver is made ready: at the fault, or at the program's start."""

    COLD = "cold"
    HOT = "hot"


class Takeover(msgspec.Struct, frozen=True):
    """The line that a program under it reports once: at the takeover, or at its refusal."""

    pid: int
    outcome: str
    reason: str | None
    detail: str
    milliseconds: float
    repeated: int = 0
    """Calls since the last epoch that were made again."""
    alone: float = 0.0
    """Of the milliseconds, those in which they were made again alone."""
    quiet: float = 0.0
    """Of them, those until the calls under way had returned."""
    context: float = 0.0
    """Of the last copy in which the program's state was made: those of its context, and of the next steps."""
    memory: float = 0.0
    objects: float = 0.0
    replay: float = 0.0

    @property
    def taken_over(self) -> bool:
        """Whether the program goes on."""
        return self.outcome == "taken_over"

    def describe(self) -> str:
        """In a few words."""
        why = f" ({self.reason}: {self.detail})" if self.reason else f", {self.repeated} calls again,"
        return f"{self.outcome}{why} in {self.milliseconds:.1f} ms{self._steps}"

    @property
    def _steps(self) -> str:
        """The longer ones."""
        names = ("quiet", "alone", "context", "memory", "objects", "replay")
        long = [f"{name} {getattr(self, name):.0f}" for name in names if getattr(self, name) >= 1]
        return f" ({', '.join(long)})" if long else ""


SPARE: Final = 8192
"""MiB for epochs: a few times what a program of these suites has."""


def variables(
    mode: Mode, lane: Target | None, report: Path | None = None, spare: int | None = None
) -> Mapping[str, str]:
    """What switches it on beside the preload's own variables, with the lane to go on in; None: the guard's choice.

    ``spare``: MiB for copies of the program's memory, with which it goes on with work in flight, repeated there.
    """
    reported = {} if report is None else {"MPSGUARD_SECOND_REPORT": str(report)}
    if spare is not None:
        reported["MPSGUARD_SECOND_SPARE_MIB"] = str(spare)
    if lane is None:
        return {"MPSGUARD_SECOND_DRIVER": mode.value, **reported}
    # Without a guard, the culprit is known to be another program.
    return {
        "MPSGUARD_SECOND_DRIVER": mode.value,
        "MPSGUARD_SECOND_PIPE_DIRECTORY": str(lane.pipe_directory),
        "MPSGUARD_SECOND_REPETITION": "beside",
        **reported,
    }


def takeover(report: Path) -> Takeover | None:
    """What a program reported; None if nothing. SuiteError if that cannot be read, or is more than one line."""
    try:
        lines = report.read_text().splitlines()
        if len(lines) > 1:
            raise SuiteError(f"{report.name}: {len(lines)} takeovers of one program")
        return msgspec.json.decode(lines[0], type=Takeover) if lines else None
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise SuiteError(f"{report.name}: {error}") from None
