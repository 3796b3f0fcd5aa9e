"""Client stay: one client's presence on one lane; a client with a second driver may have two."""

from collections.abc import Iterable

import msgspec

from mpsguard.linux.identity import ProcessKey


class ClientStay(msgspec.Struct, frozen=True):
    """One client's presence on its lane, from its arrival to its end."""

    process: ProcessKey
    lane: str
    arrived: float
    ended: float | None
    uid: int | None = None
    kept: bool = False
    """Whether its address space was kept beyond its end (a lifeline)."""
    left: float | None = None
    """When its second driver took it over to another lane, after a fault of this one; it has a stay there, too."""
    spare_until: float = float("-inf")
    """Of the stay of a second driver: until when the client's own work was on another lane."""

    @property
    def until(self) -> float | None:
        """Return when it ended, or left the lane; None if neither."""
        return min((at for at in (self.ended, self.left) if at is not None), default=None)

    def was_there(self, at: float) -> bool:
        """Return whether the client lived and was on the lane at a time; the moment of its end counts."""
        return self.arrived <= at and (self.until is None or self.until >= at)

    def may_be_there(self, at: float, fresh: Iterable[float]) -> bool:
        """Return whether it had left by a time as it says itself, and nothing proves that: no end of the server.

        Args:
            at: the time.
            fresh: when the lane was seen to have no server, until then.
        """
        if self.left is None or self.left >= at or (self.ended is not None and self.ended < at):
            return False
        return not any(self.left <= each for each in fresh)
