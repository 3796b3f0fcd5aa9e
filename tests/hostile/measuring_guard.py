"""A guard over the simulated NVML, which tells the memory of simulated clients."""

import sys
from typing import Any, cast

from fault_injection.sim.nvml import SimulatedNvml
from mpsguard.cli.guard import main

if __name__ == "__main__":
    cast("dict[str, Any]", sys.modules)["pynvml"] = SimulatedNvml()
    main()
