"""A program that goes on from an image, in host memory: `examples.survivor` with checkpoints.

python -m examples.checkpointed [STEPS]
"""

import struct
import sys
import time
from contextlib import suppress

from mpsguard import client
from mpsguard.images import checkpoints, membership
from mpsguard.images.checkpoints.errors import CheckpointBusyError
from mpsguard.images.store.errors import UnknownImageError
from mpsguard.vault.client import mapped


def join() -> client.Session:
    """Join the session; a new one is filled from the image, if there is one."""
    try:
        return membership.join("checkpointed", image="sums")
    except UnknownImageError:
        return client.join("checkpointed")  # the very first start


def main(steps: int) -> None:
    """Add up 1, 2, 3, ..., with a checkpoint every 20 steps; see `examples.survivor`."""
    with join() as session, mapped.open_or_create(session, mapped.HostBackend(), "sums", 4096) as memory:
        session.ready()
        state = session.state()
        if state is None:
            memory.view(0, 8).write(struct.pack("=Q", 0))
            session.publish(state := b"0")
        print("begins with step", int(state) + 1, flush=True)
        checkpoint = None
        for step in range(int(state) + 1, int(state) + steps + 1):
            (before,) = struct.unpack("=Q", memory.view((step - 1) % 2 * 8, 8).read())
            with memory.writing(step % 2 * 8, 8):  # waits until a checkpoint that is under way has copied it
                memory.view(step % 2 * 8, 8).write(struct.pack("=Q", before + step))
            session.publish(b"%d" % step)
            if step % 20 == 0:
                if checkpoint is not None:
                    checkpoint.wait()  # one at a time
                with suppress(CheckpointBusyError):  # `mpsguard-ctl vault checkpoint` has asked for another one
                    checkpoint = checkpoints.of(session).take("sums")
            time.sleep(0.05)
        if checkpoint is not None:
            checkpoint.wait()
        print("ends with", before + step, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
