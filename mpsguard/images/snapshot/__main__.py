"""python -m mpsguard.images.snapshot PID DEADLINE PARENT DRAFT: started by `mpsguard-ctl snapshot`."""

import os
import sys

from mpsguard.images.snapshot.copying import main

if __name__ == "__main__":
    # Not sys.exit: after a GPU fault, the interpreter's finalization waits for work that never ends.
    os._exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]))
