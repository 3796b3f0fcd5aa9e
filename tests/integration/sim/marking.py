"""A simulated CUDA process with a session that marks requests of ``m/t + b`` seconds, t being the share it was given.

`python -m tests.integration.sim.marking NAME M B`
"""

import os
import sys
import time

from fault_injection.sim.cuda import CudaProcess
from mpsguard import client


def main(name: str, m: float, b: float) -> int:
    share = float(os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"])
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(1)
    with client.join(name) as session:
        latency = session.latency()
        while True:
            # What it says, whatever the machine does meanwhile.
            latency.record(m * 100 / share + b)
            time.sleep(0.001)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3])))
