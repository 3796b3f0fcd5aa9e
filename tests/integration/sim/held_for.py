"""`mpsguard`, which holds newcomers for HELD_FOR seconds where it would for half a second.

A simulated server that gets no processor notices a fault later than a real one.
"""

import os
import sys
from unittest.mock import patch

from mpsguard.cli.guard import main
from mpsguard.guard.lanes import lane_judge

if __name__ == "__main__":
    seconds = float(os.environ["HELD_FOR"])
    with patch.multiple(lane_judge, QUIET=seconds, HELD_UP=2 * seconds):
        sys.exit(main())
