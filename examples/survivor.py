"""A program that outlives its process, in host memory: it adds up numbers, and continues after a failure.

mpsguard run --standby 1 -- python -m examples.survivor [STEPS]
"""

import struct
import sys
import time

from mpsguard import client
from mpsguard.vault.client import mapped


def main(steps: int) -> None:
    """Add up 1, 2, 3, ...; each sum is written beside the previous one, so that one of the two is always whole."""
    with (
        client.join("survivor", keep=600) as session,
        mapped.open_or_create(session, mapped.HostBackend(), "sums", 4096) as memory,
    ):
        session.ready()  # a standby waits here until it is the active process
        state = session.state()
        if state is None:  # nothing was ever published: fill the memory, then say so
            memory.view(0, 8).write(struct.pack("=Q", 0))
            session.publish(state := b"0")
        for step in range(int(state) + 1, steps + 1):
            (before,) = struct.unpack("=Q", memory.view((step - 1) % 2 * 8, 8).read())
            memory.view(step % 2 * 8, 8).write(struct.pack("=Q", before + step))
            session.publish(b"%d" % step)  # from here on this step survives
            print(step, before + step, flush=True)
            time.sleep(0.05)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
