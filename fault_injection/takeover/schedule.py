"""Schedule of one run of the simulation: the clients' requests, and the faults. Made from a seed, printable."""

import random
from typing import Final, NamedTuple

from fault_injection.takeover.model import Request
from fault_injection.takeover.traps import Effect, Point, Trap

_FAULTS: Final = (0.05, 0.55, 0.40)
"""Chances of none, one, two. More than two in a row at one token would make an innocent request look guilty."""
_POISONED: Final = 0.08
_VAULT_KILLED: Final = 0.05
_AT_A_POINT: Final = 0.75
_ONCE_A_LIFE: Final[tuple[Point, ...]] = (Point.STARTED, Point.MAPPED)
_ONCE_A_TAKEOVER: Final[tuple[Point, ...]] = (Point.PROMOTED, Point.TAKEN, Point.REPUBLISHED)
_ONCE_A_REQUEST: Final[tuple[Point, ...]] = (Point.ACCEPTED, Point.KNOWN, Point.FINISHED, Point.DROPPED)
_ONCE_A_STEP: Final[tuple[Point, ...]] = (Point.COMPUTED, Point.PUBLISHED, Point.HALF_WRITTEN, Point.WRITTEN)
_FENCED: Final = 0.25
_LATEST: Final = 0.12
"""Seconds after the beginning within which something happens at a random moment."""


class Asks(NamedTuple):
    """A network client."""

    request: Request
    after: float
    """Seconds."""
    halting: bool
    """It sends its request in two pieces, and reads slowly."""


class Kill(NamedTuple):
    """SIGKILL at a random moment."""

    after: float
    """Seconds."""
    which: int
    """Of the processes that there are then."""


class Schedule(NamedTuple):
    """One run."""

    clients: tuple[Asks, ...]
    traps: tuple[Trap, ...]
    kills: tuple[Kill, ...]
    vault_killed_after: float | None

    @property
    def faults(self) -> int:
        """How many there are at most."""
        return len(self.traps) + len(self.kills) + (self.vault_killed_after is not None)


def make(seed: int, index: int) -> Schedule:
    """The schedule of that number, of those of the seed."""
    chance = random.Random(f"{seed}:{index}")
    poisoned = chance.random() < _POISONED
    clients = [_asks(chance, f"{seed}.{index}.{number}") for number in range(chance.randint(1, 4))]
    if poisoned:
        number = chance.randrange(len(clients))
        request = clients[number].request
        clients[number] = clients[number]._replace(request=request._replace(poison=chance.randrange(request.tokens)))
    faults = chance.choices((0, 1, 2), _FAULTS)[0]
    if poisoned:
        faults = min(faults, 1)
    at_points = sum(chance.random() < _AT_A_POINT for _ in range(faults))
    return Schedule(
        tuple(clients),
        tuple(_trap(chance, first=number == 0) for number in range(at_points)),
        tuple(
            sorted(Kill(round(chance.uniform(0, _LATEST), 4), chance.randrange(2)) for _ in range(faults - at_points))
        ),
        round(chance.uniform(0, _LATEST), 4) if chance.random() < _VAULT_KILLED else None,
    )


def _asks(chance: random.Random, prompt: str) -> Asks:
    wide = chance.random() < 0.2
    request = Request(prompt, chance.randint(1, 12 if wide else 60), chance.choice((20_000, 70_000) if wide else (40,)))
    return Asks(request, round(chance.choice((0.0, chance.uniform(0, _LATEST / 2))), 4), chance.random() < 0.3)


def _trap(chance: random.Random, *, first: bool) -> Trap:
    # At first a process serves; promotions and starts follow a first fault.
    points = chance.choice((_ONCE_A_REQUEST, _ONCE_A_STEP, _ONCE_A_STEP))
    if not first:
        points = chance.choice((points, _ONCE_A_TAKEOVER, _ONCE_A_LIFE))
    point = chance.choice(points)
    effect = Effect.FENCE if points in (_ONCE_A_REQUEST, _ONCE_A_STEP) and chance.random() < _FENCED else Effect.KILL
    return Trap(point, chance.randint(1, 25) if points == _ONCE_A_STEP else 1, effect)
