"""python -m mpsguard.images.copier SOCKET EVENT: started by a session's writer, with two of its descriptors."""

import os
import sys

from mpsguard.images.copier.process import main

if __name__ == "__main__":
    # Not sys.exit: after a GPU fault, the interpreter's finalization waits for work that never ends.
    os._exit(main(int(sys.argv[1]), int(sys.argv[2])))
