"""`second_idle.cu`, or with `busy [ROUNDS [FAULT]]` `second_busy.cu`, on the simulated CUDA: it tests the suite.

Its second driver is a second simulated process, in a given lane or through the guard.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from fault_injection.sim.cuda import CudaFailureError, CudaProcess
from fault_injection.sim.second_driver import SimulatedSecondDriver

DIED = 3
_ROUNDS, _BUSY, _FAULT = 1500, 3, 200


def main() -> int:
    """Be idle until a line comes, then launch; the exit status."""
    cuda = CudaProcess()
    _context(cuda)
    rounds, fault = (*sys.argv[2:], *("", "")[len(sys.argv[2:]) :])
    mode = os.environ.get("MPSGUARD_SECOND_DRIVER")
    through_guard = mode is not None and "MPSGUARD_SECOND_PIPE_DIRECTORY" not in os.environ
    second = SimulatedSecondDriver(mode, "", 1) if mode is not None and through_guard else None
    _emit("idle")
    if not sys.stdin.readline():
        return 0
    begin = time.monotonic()
    lost: list[CudaProcess] = []
    for number in range(int(rounds or _ROUNDS) if sys.argv[1:2] == ["busy"] else 1):
        try:
            if fault and number == _FAULT:
                _emit("injected")
                cuda.launch(0.0, fault)
                cuda.synchronize()
            if second is not None and (moved := second.move_if_asked()) is not None:
                lost.append(cuda)
                cuda = moved
            _kernel(cuda)
        except CudaFailureError as failure:
            struck = time.monotonic()
            lost.append(cuda)
            try:
                cuda = _gone_over(second, failure, faults=bool(fault))
            except CudaFailureError as failed:
                if second is not None:
                    _report(1e3 * (time.monotonic() - struck), "repeated_fault")
                _emit("died", code=failed.code, name="simulated", call="simulated")
                return DIED
            _report(1e3 * (time.monotonic() - struck))
        if number == _BUSY:
            _emit("busy")
    _emit("went_on", milliseconds=1e3 * (time.monotonic() - begin))
    _emit("result", digest="simulated")
    _emit("finished")
    return 0


def _gone_over(second: SimulatedSecondDriver | None, failure: CudaFailureError, *, faults: bool) -> CudaProcess:
    """The driver that goes on; the failure where there is none."""
    lane = os.environ.get("MPSGUARD_SECOND_PIPE_DIRECTORY")
    if second is not None:
        second.repeat_alone(faults=faults)
        return second.take_over()
    if lane is None:
        raise failure
    cuda = CudaProcess(Path(lane))
    _context(cuda)
    return cuda


def _context(cuda: CudaProcess) -> None:
    cuda.init()
    cuda.create_context(1)
    _kernel(cuda)


def _kernel(cuda: CudaProcess) -> None:
    cuda.launch(0.001)
    cuda.synchronize()


def _report(milliseconds: float, reason: str | None = None) -> None:
    outcome = "taken_over" if reason is None else "refused"
    line = {"pid": os.getpid(), "outcome": outcome, "reason": reason, "detail": "", "milliseconds": milliseconds}
    line["alone"] = milliseconds if "MPSGUARD_SECOND_PIPE_DIRECTORY" not in os.environ else 0.0
    Path(os.environ["MPSGUARD_SECOND_REPORT"]).write_text(json.dumps(line) + "\n")


def _emit(event: str, **members: object) -> None:
    head = {"event": event, "pid": os.getpid(), "monotonic": time.monotonic(), "realtime": time.time()}
    sys.stdout.write(json.dumps(head | members) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
