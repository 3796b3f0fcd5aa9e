"""`mpsguard`, which holds newcomers for an hour where it would for half a second: one that is held is seen."""

import sys
from unittest.mock import patch

from mpsguard.cli.guard import main

if __name__ == "__main__":
    with patch.multiple("mpsguard.guard.lanes.recovery", QUIET=3600.0, HELD_UP=3600.0):
        sys.exit(main())
