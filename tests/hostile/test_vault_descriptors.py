"""Descriptors that do not close: sent to the vault at every point of a conversation, by another user."""

import os
from collections.abc import Callable, Iterator

import pytest

from tests.harness.waiting import wait_for
from tests.hostile import vault_attacks
from tests.hostile.vault_attacks import Stranger
from tests.hostile.vault_neighbours import Neighbourhood, attack

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be several users"),
]


@pytest.fixture
def neighbourhood() -> Iterator[Neighbourhood]:
    with Neighbourhood().open() as opened:
        yield opened


ATTACKS = [
    vault_attacks.at_the_greeting,
    vault_attacks.before_anything_is_accepted,
    vault_attacks.beyond_the_limit,
    vault_attacks.as_chunks,
    vault_attacks.more_than_agreed_and_gone,
    vault_attacks.in_the_middle,
]


@pytest.mark.parametrize("what", ATTACKS, ids=lambda what: what.__name__)
def test_others_are_answered_meanwhile_and_nothing_is_left(
    neighbourhood: Neighbourhood, what: Callable[[Stranger], None]
) -> None:
    with neighbourhood.good_client() as is_answered:
        before, tasks = neighbourhood.descriptors(), neighbourhood.tasks()
        with attack(neighbourhood.path, what):
            is_answered(100)
            # One process for that user, the thread that closes memory, and nothing that waits for the stranger.
            wait_for("the end of threads and children", lambda: neighbourhood.tasks() <= tasks + 2)
        is_answered(10)
        wait_for("the end of what the stranger had sent", lambda: not neighbourhood.foreign())
        wait_for("its porter's end", lambda: neighbourhood.descriptors() <= before)
