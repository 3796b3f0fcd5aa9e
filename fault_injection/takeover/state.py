"""The simulated server's forward state: what it must know to go on where another process broke off."""

import msgspec

from fault_injection.takeover.model import Request
from mpsguard.vault.client.poison_requests import PoisonRequestTracker


class Known(msgspec.Struct, frozen=True):
    """A request that has been seen as a whole; it stays in its connection until it is answered."""

    request: Request
    slot: int
    """Its place in the cache."""
    tokens: int = 0
    """How many of them are in the cache, and count."""
    skipped: bool = False

    @property
    def complete(self) -> bool:
        """Whether there is nothing more to compute."""
        return self.skipped or self.tokens == self.request.tokens


class State(msgspec.Struct, frozen=True):
    """Requests by the tag of their connection."""

    known: dict[int, Known] = {}
    in_step: tuple[int, ...] = ()
    """Tags of the requests in the current step."""
    book: PoisonRequestTracker = PoisonRequestTracker()


def encode(state: State) -> bytes:
    """For `Session.publish`."""
    return msgspec.msgpack.encode(state)


def decode(data: bytes) -> State:
    """What was published."""
    return msgspec.msgpack.decode(data, type=State)
