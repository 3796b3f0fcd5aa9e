"""How many address spaces each user may have watched."""

from __future__ import annotations

import random

from mpsguard.guard.sensors.uvm_shares import Limits, Refusal, TakenPlace, place_for
from mpsguard.linux.identity import ProcessKey

LIMITS = Limits(most=20, of_a_user=8, roots=4)


def clients_of(uid: int, *counts: int) -> list[TakenPlace]:
    return [
        TakenPlace(ProcessKey(10 * uid + number, number), uid)
        for number, count in enumerate(counts)
        for _ in range(count)
    ]


def test_a_users_share_is_below_the_total() -> None:
    assert place_for(1, clients_of(1, 1, 1, 1, 1, 1, 1, 1), LIMITS) is None
    assert isinstance(place_for(1, clients_of(1, 1, 1, 1, 1, 1, 1, 1, 1), LIMITS), Refusal)
    assert place_for(0, clients_of(0, *[1] * 19), LIMITS) is None


def test_places_of_roots_are_no_one_elses() -> None:
    taken = clients_of(1, *[1] * 8) + clients_of(2, *[1] * 8)
    assert place_for(0, taken, LIMITS) is None
    assert place_for(3, taken, LIMITS) is not None


def test_the_client_with_most_of_the_user_with_most_gives_way() -> None:
    taken = clients_of(1, 1, 4, 1) + clients_of(2, 1, 1, 1) + clients_of(3, *[1] * 7)
    assert place_for(2, taken, LIMITS) == ProcessKey(36, 6), "of those with as many, the latest"
    taken = clients_of(1, 1, 4, 3) + clients_of(2, 1, 1, 1) + clients_of(3, *[1] * 5)
    assert place_for(2, taken, LIMITS) == ProcessKey(11, 1)
    assert place_for(0, [*taken, *clients_of(0, 1, 1, 1, 1)], LIMITS) == ProcessKey(11, 1)


def test_root_gives_way_beyond_its_places() -> None:
    assert isinstance(place_for(0, clients_of(0, *[1] * 20), LIMITS), Refusal)
    assert place_for(1, clients_of(0, *[1] * 20), LIMITS) == ProcessKey(19, 19)
    others = [each for uid in range(1, 5) for each in clients_of(uid, 1, 1, 1, 1)]
    assert isinstance(
        place_for(5, clients_of(0, *[1] * 4) + [TakenPlace(ProcessKey(90 + n, n), 90 + n) for n in range(16)], LIMITS),
        Refusal,
    )
    assert place_for(5, clients_of(0, *[1] * 4) + others, LIMITS) == ProcessKey(13, 3)


def test_no_bound_is_passed_and_every_user_gets_some() -> None:
    chance = random.Random(20261123)
    for _ in range(300):
        watched: list[TakenPlace] = []
        for number in range(120):
            uid = chance.choice([0, 1, 1, 1, 2, 2, 3, 4])
            place = place_for(uid, watched, LIMITS)
            if isinstance(place, Refusal):
                continue
            if place is not None:
                watched.remove(next(one for one in reversed(watched) if one.client == place))
            watched.append(TakenPlace(ProcessKey(number, number), uid))
            counts = [sum(one.uid == user for one in watched) for user in range(5)]
            assert sum(counts) <= LIMITS.most
            assert sum(counts[1:]) <= LIMITS.most - LIMITS.roots
            assert max(counts[1:]) <= LIMITS.of_a_user
        late = place_for(9, watched, LIMITS)
        assert not isinstance(late, Refusal), "a user that has nothing finds a place"
