"""Which ends of writers count as early, and how many are told."""

import pytest

from mpsguard.linux.identity import ProcessKey
from mpsguard.vault.server.early_deaths import EARLY, REPORTED_PER_USER, WINDOW, EarlyDeath, EarlyDeaths
from mpsguard.vault.wire.region import SessionKey

SESSION = SessionKey(1000, "s")
PROCESS = ProcessKey(7, 8)


class Watched:
    """Early deaths, and what they told."""

    def __init__(self) -> None:
        self.told: list[EarlyDeath] = []
        self.deaths = EarlyDeaths(self.told.append)

    def life(self, begins: float, seconds: float, *, in_order: bool = False, key: SessionKey = SESSION) -> None:
        token = int(begins * 1000) + 1
        self.deaths.promoted(key, token, begins)
        self.deaths.ended(key, token, PROCESS, 3, begins + seconds, in_order=in_order)

    def rows(self) -> list[int]:
        return [death.in_a_row for death in self.told]


def test_those_in_a_row_are_numbered() -> None:
    watched = Watched()
    for begins in (0.0, 1.0, 2.0):
        watched.life(begins, 0.5)
    assert watched.rows() == [1, 2, 3]
    assert watched.told[0] == EarlyDeath(SESSION, PROCESS, 3, 0.5, 1)


@pytest.mark.parametrize(("seconds", "in_order"), [(EARLY, False), (0.5, True)])
def test_a_long_life_or_an_orderly_end_is_none_and_ends_the_row(seconds: float, in_order: bool) -> None:
    watched = Watched()
    watched.life(0.0, 0.5)
    watched.life(1.0, seconds, in_order=in_order)
    watched.life(20.0, 0.5)
    assert watched.rows() == [1, 1]
    assert watched.deaths.total == 2


def test_a_writer_that_was_not_promoted_is_none() -> None:
    watched = Watched()
    watched.deaths.ended(SESSION, 1, PROCESS, 1, 0.5, in_order=False)
    assert watched.deaths.total == 0


def test_a_session_that_is_no_more_is_forgotten() -> None:
    watched = Watched()
    watched.life(0.0, 0.5)
    watched.deaths.forget(SESSION)
    watched.life(1.0, 0.5)
    assert watched.rows() == [1, 1]


def test_one_user_does_not_fill_the_events_of_all() -> None:
    watched = Watched()
    for number in range(REPORTED_PER_USER * 3):
        watched.life(number * 0.01, 0.001)
    watched.life(0.5, 0.001, key=SessionKey(1001, "s"))
    assert watched.rows() == [*range(1, REPORTED_PER_USER + 1), 1]
    assert watched.deaths.total == REPORTED_PER_USER * 3 + 1
    watched.life(WINDOW + 1.0, 0.001)
    assert watched.rows()[-1] == REPORTED_PER_USER * 3 + 1
