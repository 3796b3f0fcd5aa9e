"""A client that stays when its GPU work has been ended, and that SIGTERM does not end."""

import json
import signal
import sys

from fault_injection.sim.cuda import CudaProcess

signal.signal(signal.SIGTERM, signal.SIG_IGN)
cuda = CudaProcess()
cuda.init()
cuda.create_context(1)
cuda.launch(0.001)
sys.stdout.write(json.dumps({"event": "started", "mps": cuda.mps}) + "\n")
sys.stdout.flush()
while True:
    signal.pause()
