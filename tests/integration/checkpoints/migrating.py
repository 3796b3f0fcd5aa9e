"""Both sides of a migration as programs, each with a fault if FAULT_AT names one (`faulty_copier`).

    python -m tests.integration.checkpoints.migrating source|receiver SOCKET STORE

The memory of both is host memory, which stands for that of two GPUs. The source prints the number of each publication
behind it, and the receiver that with which it begins.
"""

import os
import sys
import time
from contextlib import suppress

from mpsguard.client import Session, StaleGenerationError
from mpsguard.images import checkpoints
from mpsguard.images.checkpoints.errors import CheckpointBusyError
from mpsguard.images.migration.receive import receive
from mpsguard.images.migration.rounds import MigrationLimits
from mpsguard.vault.client.mapped import HostBackend, create
from tests.integration.checkpoints import faulty_copier

PIECE = 2 << 20
PIECES = 6
KEEP = 77.0
"""Seconds that the new session is kept."""
DEADLINE = "RECEIVER_DEADLINE"
"""Environment variable: seconds for each checkpoint of the source."""
OWN = "SOURCE_CHECKPOINTS"
"""Environment variable: the source takes a checkpoint by itself behind each publication, unless one is under way."""


def content(step: int) -> bytes:
    """What the region holds behind a step: each writes another piece, with its number."""
    found = bytearray(PIECES * PIECE)
    for each in range(max(1, step - PIECES + 1), step + 1):
        at = each % PIECES * PIECE
        found[at : at + 8] = b"%8d" % each
    return bytes(found)


def say(what: object) -> None:
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def source(socket: str, store: str) -> None:
    session = Session("s", socket=socket, keep=60)
    memory = create(session, HostBackend(), "a", PIECES * PIECE, metadata=b"mine")
    weights = create(session, HostBackend(), "weights", PIECE)
    weights.view().write(b"w" * PIECE)
    weights.region.seal()
    session.publish(b"0")
    # Its copier may get no processor for longer than the second that a program is held for by default.
    checkpoints.of(session, store=store, buffers=64 << 20, patience=60.0)
    step = 0
    while True:
        step += 1
        at = step % PIECES * PIECE
        with memory.writing(at, 8):
            memory.view(at, 8).write(b"%8d" % step)
        try:
            session.publish(b"%d" % step)
            if OWN in os.environ:
                # At once: a receiver that waits for an outcome that this publication told has no time to look at it.
                with suppress(CheckpointBusyError):
                    checkpoints.of(session).take("own")
        except StaleGenerationError as error:
            # What it has computed since the handover counts for nothing.
            say("moved" if "handed over" in str(error) else error)
            return
        say(step)
        # A step of some work: without any, the source would take the processor from its own copier.
        time.sleep(0.002)


def receiver(socket: str, store: str) -> None:
    limits = MigrationLimits(small=3 * PIECE)
    deadline = float(os.environ.get(DEADLINE, "30"))
    with receive("t", "s", socket=socket, store=store, keep=KEEP, limits=limits, deadline=deadline) as session:
        say((session.state() or b"").decode())


if __name__ == "__main__":
    if faulty_copier.VARIABLE in os.environ:
        faulty_copier.arm(os.environ[faulty_copier.VARIABLE])
    {"source": source, "receiver": receiver}[sys.argv[1]](*sys.argv[2:])
    os._exit(0)
