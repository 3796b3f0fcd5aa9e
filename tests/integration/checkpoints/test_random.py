"""Random schedules with real processes: a writer that writes while its checkpoints are made, each image compared."""

import os
import random
import time

import pytest

from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.errors import CheckpointRefusedError
from mpsguard.images.checkpoints.messages import CheckpointRefusal
from tests.harness.waiting import PATIENCE
from tests.integration.checkpoints.world import PIECE, World, content_of, region


@pytest.mark.slow(seconds=4, reason="ten checkpoints, each read back as a whole")
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
def test_images_of_a_writer_that_works_on(world: World, seed: int) -> None:
    chance = random.Random(seed)
    with (
        world.session(spare=chance.choice((0, 3)) * PIECE) as session,
        region(session, "a", os.urandom(7 * PIECE), largest=3 * PIECE) as a,
        region(session, "b", os.urandom(3 * PIECE + 4096)) as b,
    ):
        for step in range(10):
            session.publish(b"%d" % step)
            before = {"a": content_of(a), "b": content_of(b)}
            checkpoint = checkpoints.of(session).take("random")
            for _ in range(chance.randrange(12)):
                memory = chance.choice((a, b))
                offset = chance.randrange(memory.size)
                size = min(chance.choice((1, 100, PIECE, 3 * PIECE)), memory.size - offset)
                with memory.writing(offset, size):
                    memory.view(offset, size).write(chance.randbytes(size))
            assert checkpoint.wait(PATIENCE).unannounced == 0
            assert world.image("random") == before
            assert world.state("random") == b"%d" % step


@pytest.mark.slow(seconds=5, reason="thirty checkpoints, each attacked")
@pytest.mark.parametrize("attacks", [30, pytest.param(300, marks=[pytest.mark.soak, pytest.mark.timeout(900)])])
def test_no_torn_image_is_committed(world: World, attacks: int) -> None:
    """Writes that are not announced, at random moments behind many cuts; 1,000 more are simulated.

    How many of them hit a piece before it is copied is chance; one that does is in test_faults.py.
    """
    chance = random.Random(9)
    with world.session(retries=0) as session, region(session, "a", os.urandom(3 * PIECE)) as a:
        for step in range(attacks):
            session.publish(b"%d" % step)
            a.writing()
            a.view().write(chance.randbytes(64) * (a.size // 64))
            before = content_of(a)
            checkpoint = checkpoints.of(session).take("attacked")
            time.sleep(chance.choice((0.0, 0.0, 0.0005, 0.002)))  # a random moment, not a wait
            for _ in range(chance.choice((1, 3))):
                a.view(chance.randrange(a.size), 1).write(chance.randbytes(1))
            try:
                checkpoint.wait(PATIENCE)
                refusal = None
            except CheckpointRefusedError as error:
                refusal = error.refusal
            assert refusal in (None, CheckpointRefusal.TORN)
            if refusal is None:
                assert world.image("attacked") == {"a": before}


def test_a_torn_checkpoint_is_taken_again(world: World) -> None:
    """The unannounced writes stop after a while: the next cut is whole."""
    with world.session(retries=20) as session, region(session, "a", os.urandom(6 * PIECE)) as a:
        session.publish(b"0")
        checkpoint = checkpoints.of(session).take("again")
        for number in range(a.size // PIECE):
            a.view(number * PIECE, 1).write(bytes([number]))
        step = 0
        due = time.monotonic() + PATIENCE
        while checkpoint.state.value in ("under way", "armed") and time.monotonic() < due:
            step += 1
            session.publish(b"%d" % step)
        assert checkpoint.state.value == "committed"
        if checkpoint.tries > 1:
            assert world.image("again") == {"a": content_of(a)}
