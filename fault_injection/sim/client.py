"""A simulated CUDA process: `python -m fault_injection.sim.client [--seconds S] [--fault KIND --after S]`.

Prints one JSON line per phase (`connected` or `bare`, `started`, `went_over`, then `died` or `finished`), always with
`"simulated": true`. Exit status 0 when all went well, 3 when it died of a CUDA error. With MPSGUARD_SECOND_DRIVER it
does as a program under the preload with a second driver (`second_driver.py`).
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from fault_injection.sim.cuda import CudaFailureError, CudaProcess

if TYPE_CHECKING:
    from fault_injection.sim.second_driver import SimulatedSecondDriver

DIED = 3


class Plan(NamedTuple):
    """What the process is to do."""

    iterations: int | None = None
    seconds: float | None = None
    step_ms: float = 1.0
    memory_mib: int = 1
    fault: str | None = None
    after: float = 0.0
    uses: str = ""


class Client:
    """One run of a simulated CUDA process."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._cuda = CudaProcess()
        self._second: SimulatedSecondDriver | None = None
        self._left: list[CudaProcess] = []
        """The first driver after a takeover: as with the preload, its connections stay until the process ends."""
        self._iterations = 0
        self._stop = False

    def run(self) -> int:
        """Connect, compute, leave; the exit status."""
        signal.signal(signal.SIGTERM, self._end)
        try:
            self._cuda.init()
            self._cuda.create_context(self._plan.memory_mib)
            self._say("connected" if self._cuda.mps else "bare", mps=self._cuda.mps)
            self._second = self._second_driver()
            self._say("started")
            self._compute()
        except CudaFailureError as failure:
            self._cuda.close()
            self._say("died", error=failure.code)
            return DIED
        self._cuda.close()
        self._say("finished")
        return 0

    def _compute(self) -> None:
        start = time.monotonic()
        plan = self._plan
        while not self._stop:
            elapsed = time.monotonic() - start
            if plan.fault is not None and elapsed >= plan.after:
                self._misbehave(plan.fault)
            if plan.seconds is not None and elapsed >= plan.seconds:
                return
            if plan.iterations is not None and self._iterations >= plan.iterations:
                return
            try:
                self._step()
            except CudaFailureError as failure:
                self._go_over(failure)

    def _second_driver(self) -> "SimulatedSecondDriver | None":
        mode = os.environ.get("MPSGUARD_SECOND_DRIVER", "off")
        if mode == "off" or not self._cuda.mps:
            return None
        from fault_injection.sim.second_driver import SimulatedSecondDriver  # noqa: PLC0415 - most clients have none

        return SimulatedSecondDriver(mode, self._plan.uses, self._plan.memory_mib)

    def _go_over(self, failure: CudaFailureError) -> None:
        """Go on with the second driver; without one, raise the error."""
        if self._second is None:
            raise failure
        self._left.append(self._cuda)
        self._cuda = self._second.take_over()
        self._say("went_over")

    def _step(self) -> None:
        if not self._cuda.mps:
            time.sleep(self._plan.step_ms / 1000)
        self._cuda.launch(self._plan.step_ms / 1000)
        self._cuda.synchronize()
        self._iterations += 1

    def _misbehave(self, kind: str) -> None:
        from fault_injection.sim import misdeed  # noqa: PLC0415 - reads the table of faults; most clients have none

        misdeed.prepared(self._cuda, kind)()
        self._cuda.synchronize()
        self._iterations += 1

    def _end(self, _signal: int, _frame: object) -> None:
        self._stop = True

    def _say(self, event: str, **more: object) -> None:
        line = {
            "simulated": True, "event": event, "pid": os.getpid(), "t": time.time(), "iterations": self._iterations,
        }  # fmt: skip
        sys.stdout.write(json.dumps({**line, **more}) + "\n")
        sys.stdout.flush()


def _fault(name: str) -> str:
    """The name, if there is such a fault."""
    from fault_injection.sim import misdeed  # noqa: PLC0415 - reads the table of faults; most clients have none

    if name not in misdeed.NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(misdeed.NAMES)}")
    return name


def parse(arguments: Sequence[str]) -> Plan:
    """Read the command line."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="python -m fault_injection.sim.client", description=__doc__)
    parser.add_argument("--iterations", type=int, help="end after this many kernels")
    parser.add_argument("--seconds", type=float, help="end after this long (default: run until SIGTERM)")
    parser.add_argument("--step-ms", type=float, default=usual.step_ms, help="duration of a kernel")
    parser.add_argument("--memory-mib", type=int, default=usual.memory_mib, help="simulated GPU memory")
    parser.add_argument("--fault", type=_fault, metavar="KIND", help="what to do wrong")
    parser.add_argument("--uses", default=usual.uses, metavar="REASON", help="why a second driver cannot take over")
    parser.add_argument("--after", type=float, default=usual.after, help="when to do it, in seconds")
    return Plan(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(Client(parse(sys.argv[1:])).run())
