"""SIMULATED: a writer and two copier threads of one checkpoint, interleaved word by word in 1,000 random ways.

The decisions are the real ones (`Schedule`, `PieceTable`, `SpareSlots`, `protect`); memory, spare memory and store are
lists, and a copy is made a word at a time, so that it can be torn. Where the real parts run at the same time, here the
seed says which of them makes its next step.
"""

import os
import random
from collections.abc import Iterator

import pytest
from blake3 import blake3

from mpsguard.images.checkpoints.announcements import UnderWay, protect
from mpsguard.images.checkpoints.piece_table import PieceTable
from mpsguard.images.checkpoints.pieces import PIECE, RegionSpan
from mpsguard.images.checkpoints.spare import SpareSlots
from mpsguard.images.copier.schedule import Claim, Schedule

WORDS = 3
"""In a piece."""
SCHEDULES = 1000

Piece = list[int]


def digest(piece: Piece) -> bytes:
    return blake3(repr(piece).encode()).digest()


class Simulation:
    """One checkpoint from its cut to its end."""

    def __init__(self, seed: int, *, unannounced: float) -> None:
        self.chance = random.Random(seed)
        count = self.chance.randint(1, 12)
        self.memory = [[self.chance.randrange(3) for _ in range(WORDS)] for _ in range(count)]
        self.cut = [list(piece) for piece in self.memory]
        self.digests = [digest(piece) for piece in self.cut]
        slots = self.chance.choice((0, 1, count // 2, count))
        self.spare = [[-1] * WORDS for _ in range(slots)]
        self.slots = SpareSlots(slots)
        self.table, self.fd = PieceTable.create(count, seed + 1)
        self.table.digests[:] = b"".join(self.digests)
        # As in another process: the copier has a mapping of its own.
        self.theirs = PieceTable.open(self.fd, count, seed + 1)
        self.schedule = Schedule(self.digests, [0])
        self.store: dict[bytes, Piece] = {}
        for piece in self.cut:
            if self.chance.random() < 0.2:
                self.store[digest(piece)] = list(piece)
        self.unannounced = unannounced
        self.forgotten = 0
        self.threads = [self.copier(), self.copier()]

    # --- the copier

    def copier(self) -> Iterator[None]:
        schedule, table = self.schedule, self.theirs
        while not schedule.is_over:
            yield
            found, claim = schedule.claim(table.wanted(), table.slot, 4, self.store.__contains__)
            for number in found:
                table.set_copied((number,))
            if claim is None:
                continue
            copies: list[Piece] = [[] for _ in claim.pieces]
            for word in range(WORDS):
                for copy, source in zip(copies, self.sources(claim), strict=True):
                    yield
                    copy.append(source[word])
            yield
            kept = schedule.held(claim, table.slot)
            for number in kept:
                yield
                table.set_copied((number,))
            for number in kept:
                yield
                content = copies[number - claim.pieces.start]
                self.store[digest(content)] = content
                schedule.stored(number, digest(content))

    def sources(self, claim: Claim) -> list[Piece]:
        if claim.slot is None:
            return self.memory[claim.pieces.start : claim.pieces.stop]
        return self.spare[claim.slot : claim.slot + len(claim.pieces)]

    def step(self) -> None:
        """One step of one of the copier's threads."""
        thread = self.chance.choice(self.threads)
        next(thread, None)

    def some_steps(self) -> None:
        while self.chance.random() < 0.6:
            self.step()

    # --- the writer

    def write(self) -> None:
        """Write to some pieces, announced or not, with steps of the copier in between."""
        first = self.chance.randrange(len(self.memory))
        numbers = range(first, self.chance.randint(first, len(self.memory) - 1) + 1)
        if self.chance.random() < self.unannounced:
            self.forgotten += 1
        else:
            protect(
                UnderWay(self.table, {"r": RegionSpan("r", len(self.memory) * PIECE, 0)}),
                numbers,
                slots=self.slots,
                copy=self.set_aside if self.spare else None,
                most=2,
                wait=self.wait,
            )
        for number in numbers:
            for word in range(WORDS):
                self.some_steps()
                self.memory[number][word] = self.chance.randrange(3)

    def set_aside(self, pieces: range, slots: range) -> None:
        for number, slot in zip(pieces, slots, strict=True):
            for word in range(WORDS):
                self.some_steps()
                self.spare[slot][word] = self.memory[number][word]

    def wait(self, pending: list[int]) -> None:
        while not self.schedule.is_over and not all(map(self.table.is_copied, pending)):
            self.step()

    # --- the end

    def run(self) -> None:
        while not self.schedule.is_over:
            self.some_steps()
            if self.chance.random() < 0.3:
                self.write()
            self.step()

    def image(self) -> list[Piece]:
        return [self.store[each] for each in self.digests]

    def close(self) -> None:
        self.table.close()
        self.theirs.close()
        os.close(self.fd)


@pytest.mark.parametrize("block", range(10))
def test_announced_writes_never_tear_an_image_and_never_hinder_one(block: int) -> None:
    for seed in range(block * SCHEDULES // 10, (block + 1) * SCHEDULES // 10):
        simulation = Simulation(seed, unannounced=0.0)
        simulation.run()
        assert simulation.schedule.is_whole, seed
        assert simulation.image() == simulation.cut, seed
        simulation.close()


def test_an_image_with_forgotten_writes_is_whole_or_refused() -> None:
    refused = 0
    for seed in range(SCHEDULES):
        simulation = Simulation(seed, unannounced=0.5)
        simulation.run()
        if simulation.schedule.is_whole:
            assert simulation.image() == simulation.cut, seed
        else:
            refused += 1
            assert simulation.forgotten, seed
        simulation.close()
    # Otherwise nothing was shown: many of these writes hit a piece before it is copied.
    assert refused > SCHEDULES // 10
