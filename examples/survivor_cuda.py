"""A program that outlives its process, in GPU memory: `examples.survivor` with 1024 sums and PyTorch.

mpsguard run --standby 1 -- python -m examples.survivor_cuda [STEPS]
"""

import sys
import time

import torch

from mpsguard import client
from mpsguard.vault.client import cuda


def main(steps: int) -> None:
    """Add up 1, 2, 3, ... on the GPU; see `examples.survivor`."""
    with client.join("survivor-cuda", keep=600) as session, cuda.open_or_create(session, "sums", 2 << 20) as memory:
        sums = torch.as_tensor(memory.view(0, 2 * 1024 * 8), device="cuda").view(torch.int64).view(2, 1024)
        torch.add(torch.zeros_like(sums[0]), 1)  # load what a step needs before this process reports that it is ready
        torch.cuda.synchronize()
        session.ready()  # a standby waits here until it is the active process
        state = session.state()
        if state is None:  # nothing was ever published: fill the memory, then say so
            sums.zero_()
            torch.cuda.synchronize()
            session.publish(state := b"0")
        for step in range(int(state) + 1, steps + 1):
            torch.add(sums[(step - 1) % 2], step, out=sums[step % 2])
            torch.cuda.synchronize()
            session.publish(b"%d" % step)  # from here on this step survives
            print(step, sums[step % 2, 0].item(), flush=True)
            time.sleep(0.05)
        del sums  # a region cannot be unmapped while a tensor uses it


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
