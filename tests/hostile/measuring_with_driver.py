"""`tests.hostile.with_driver` over the simulated NVML, which tells the memory of simulated clients."""

import runpy
import sys
from typing import Any, cast

from fault_injection.sim.nvml import SimulatedNvml

if __name__ == "__main__":
    cast("dict[str, Any]", sys.modules)["pynvml"] = SimulatedNvml()
    runpy.run_module("tests.hostile.with_driver", run_name="__main__", alter_sys=True)
