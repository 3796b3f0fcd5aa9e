"""What a supervisor asks of a guard. It is given what asks: it speaks no protocol of the guard's."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from mpsguard.linux.identity import ProcessKey


class GuardSilentError(Exception):
    """No guard, none that answers in time, or one that cannot do it; the words say which."""


class ClientWork(NamedTuple):
    """What became of the GPU work of one process that is a client."""

    process: ProcessKey
    ended: bool
    """Whether the guard has ended it."""
    in_flight: bool
    """Whether it may go on."""
    answer: str
    """The control daemon's, or why it was not asked."""


class EndWork(Protocol):
    """Ends the GPU work of those of some processes that are clients."""

    async def __call__(self, processes: Sequence[ProcessKey], /) -> Sequence[ClientWork]:
        """Return one entry for each that is a client; raise GuardSilentError."""
