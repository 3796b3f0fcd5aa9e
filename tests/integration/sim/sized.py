"""A simulated CUDA process that needs ``m/t + b`` seconds, t being the share it was given.

`python -m tests.integration.sim.sized M B [FILE]`; FILE gets a line for each run, with the share.
"""

import os
import sys
import time
from pathlib import Path

from fault_injection.sim.cuda import CudaProcess


def main(m: float, b: float, file: str | None) -> int:
    share = float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(1)
    try:
        if file is not None:
            with Path(file).open("a", encoding="ascii") as runs:
                runs.write(f"{share:g}\n")
        # Its standard output is not that of the command that started it.
        sys.stdout.write("at work\n")
        time.sleep(m * 100 / share + b)
    finally:
        cuda.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else None))
