"""A simulated CUDA process with a session in the vault: counts kernels, and goes on counting as a standby.

`python -m tests.integration.sim.worker [NAME]`; a JSON line for each thing that happens.
"""

import itertools
import json
import os
import socket
import sys
import time
from contextlib import suppress

from fault_injection.sim.cuda import CudaFailureError, CudaProcess
from mpsguard import client
from mpsguard.vault.client.kept_connections import KeptConnections


def say(event: str, **more: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "pid": os.getpid(), **more}) + "\n")
    sys.stdout.flush()


def connection(*, begun: bool) -> socket.socket | None:
    """The one network connection of this program, which its supervisor keeps; None if it listens nowhere."""
    if "LISTEN_FDS" not in os.environ:
        return None
    connections = KeptConnections.from_environment()
    if begun:
        with socket.socket(fileno=3) as listener:
            accepted = None
            while accepted is None:
                accepted = connections.accept(listener, 1)
        return accepted
    return connections.take()[1]


def wait_at_gate() -> None:
    """Wait until the FIFO that WORKER_GATE names is opened for writing, if there is one at this moment."""
    with suppress(FileNotFoundError, KeyError), open(os.environ["WORKER_GATE"]):
        pass


def main(name: str) -> int:
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(1)
    try:
        with client.join(name) as session:
            say("joined", role=session.role, mps=cuda.mps)
            wait_at_gate()
            session.ready()
            state = session.state()
            kept = connection(begun=state is None)
            begins = int(state) if state is not None else 0
            say("working", at=begins, t=time.monotonic())
            for number in itertools.count(begins + 1):
                cuda.launch(0.001)
                cuda.synchronize()
                session.publish(str(number).encode())
                if kept is not None and number % 10 == 0:
                    kept.send(b".")
                if number == begins + 1:
                    say("went on", at=number)
            return 0
    except CudaFailureError as failure:
        say("died", error=failure.code)
        return 3
    except client.StaleGenerationError:
        say("fenced")
        return 4
    finally:
        cuda.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else "work"))
