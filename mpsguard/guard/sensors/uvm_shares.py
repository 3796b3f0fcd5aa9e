"""How many address spaces are watched for each user, and which client gives one up when all places are taken.

Pure: a list of what is watched in, a decision out.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from mpsguard.linux.identity import ROOT, ProcessKey
from mpsguard.linux.user_share import Room, UserShare

MOST: Final = 512
"""Address spaces of living clients watched at once: three descriptors and six pages each."""

MOST_OF_A_USER: Final = 128
"""A quarter. A server takes 48 or 60 clients, each of which has one: two full servers."""

ROOTS: Final = 32
"""Of `MOST`, what root alone may have; a sixteenth, as of the connections."""


class TakenPlace(NamedTuple):
    """One address space that is watched."""

    client: ProcessKey
    uid: int


class Limits(msgspec.Struct, frozen=True):
    """How many there may be."""

    most: int = MOST
    of_a_user: int = MOST_OF_A_USER
    roots: int = ROOTS


class Refusal(NamedTuple):
    """One more may not be watched."""

    reason: str


def place_for(uid: int, watched: Sequence[TakenPlace], limits: Limits) -> ProcessKey | Refusal | None:
    """What must be done before one more of ``uid`` is watched.

    None: nothing, there is room. A client: it gives its latest up, being the one with most of the user that has most.
    """
    share: UserShare[int] = UserShare(limits.most, limits.of_a_user, privileged=(ROOT,), reserved=limits.roots)
    for one in watched:
        share.exceed(one.uid)
    room = share.room(uid)
    if room is Room.OWN_SHARE:
        return Refusal(f"{limits.of_a_user} address spaces of its user are watched already")
    if room is Room.FREE:
        return None
    heavier = share.heavier(uid)
    if heavier is None:
        return Refusal(f"{limits.most} address spaces are watched already")
    clients = Counter(one.client for one in watched if one.uid == heavier)
    return max(clients, key=lambda client: (clients[client], client.start_ticks, client.pid))
