"""Hundreds of writers, each SIGKILLed at a random moment of publishing: the state they leave is whole.

A writer that ends between any two stores is in tests/unit/vault/wire/test_state_buffer.py.
"""

import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from mpsguard.linux.descriptors import memfd
from mpsguard.vault.wire import state_buffer
from mpsguard.vault.wire.state_buffer import Publisher, State
from tests.integration.vault.running import REPOSITORY

pytestmark = pytest.mark.slow(seconds=5, reason="kills a writer hundreds of times")

KILLS = (500, pytest.param(5000, marks=[pytest.mark.soak, pytest.mark.timeout(900)]))
CAPACITY = 8192
SEED = 20261121


def self_describing(number: int) -> bytes:
    """A state that can be told whole from its own bytes; its length differs from one to the next."""
    body = number.to_bytes(8, "little") * (1 + number * 7919 % 900)
    return hashlib.blake2b(body, digest_size=16).digest() + body


def check(state: State) -> None:
    digest, body = state.state[:16], state.state[16:]
    assert hashlib.blake2b(body, digest_size=16).digest() == digest
    assert body[:8] == state.sequence.to_bytes(8, "little")


def run(kills: int) -> None:
    """Fork writers one after the other, and kill each; in a process of its own, which has no threads."""
    chance = random.Random(SEED)
    fd = memfd.create("record", state_buffer.size(CAPACITY), fixed=True)
    for at, piece in state_buffer.blank(CAPACITY, 1, None):
        os.pwrite(fd, piece, at)
    memory = mmap.mmap(fd, state_buffer.size(CAPACITY))
    # Where a writer notes what it has been told: with the kernel's own order of a dead process's stores.
    returned = mmap.mmap(-1, 8)
    last = 0
    published, tell = os.pipe()
    for _ in range(kills):
        pid = os.fork()
        if pid == 0:
            writer = Publisher(memoryview(memory), CAPACITY, 1, memoryview(bytes([1, *bytes(7)])).cast("Q"))
            noted = memoryview(returned).cast("Q")
            number = last
            while True:
                number += 1
                noted[0] = writer.publish(self_describing(number))
                if number == last + 1:
                    os.write(tell, b".")
        # Its first state is there, however long the machine took to come to it.
        os.read(published, 1)
        time.sleep(chance.uniform(0, 0.0015))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        state = state_buffer.latest(lambda at, length: os.pread(fd, length, at), CAPACITY)
        assert state is not None
        check(state)
        assert state.sequence >= int.from_bytes(returned[:8], sys.byteorder), "a published state was lost"
        last = state.sequence
    print(last)  # noqa: T201 - what the test reads


@pytest.mark.parametrize("kills", KILLS)
def test_a_writer_killed_at_any_moment_leaves_a_whole_state(kills: int) -> None:
    said = subprocess.run(
        [sys.executable, "-m", "tests.integration.vault.test_killed_publisher", str(kills)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    assert int(said.stdout) >= kills


if __name__ == "__main__":
    run(int(sys.argv[1]))
