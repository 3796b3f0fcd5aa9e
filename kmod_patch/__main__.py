"""`python -m kmod_patch`: mpsguard-kmod from a source tree."""

import sys

from kmod_patch.cli import main

if __name__ == "__main__":
    sys.exit(main())
