"""What a report is made from: the shape of a recorded incident, whoever recorded it."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from mpsguard.incident import Incident
from mpsguard.model import Client

Advice = Mapping[int, str]
"""What to do about an Xid, by its number."""


class Decision(Protocol):
    """What was decided or done about an incident, or came of it; ``at`` is UNIX seconds."""

    @property
    def at(self) -> float: ...  # noqa: D102
    @property
    def kind(self) -> str: ...  # noqa: D102
    @property
    def text(self) -> str: ...  # noqa: D102


class Case(Protocol):
    """An incident with what was kept beside it."""

    @property
    def id(self) -> str: ...  # noqa: D102
    @property
    def wall_offset(self) -> float:
        """Added to a CLOCK_MONOTONIC time of the incident it gives UNIX seconds."""

    @property
    def incident(self) -> Incident: ...  # noqa: D102
    @property
    def clients(self) -> Sequence[Client]: ...  # noqa: D102
    @property
    def decisions(self) -> Sequence[Decision]: ...  # noqa: D102
    @property
    def versions(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def evidence_left_out(self) -> int: ...  # noqa: D102
