"""Runs a module of this package as ``-m`` does: ``python -P run_module.py MODULE ARGUMENT...``.

``-m`` finds the package where it is not installed by PYTHONPATH alone, which `-I` ignores and every child inherits.
"""

import os
import runpy
import sys

if __name__ == "__main__":
    # Not pathlib, which takes as long to import as the rest of a small program's start.
    _root = os.path.realpath(__file__).rsplit("/mpsguard/", 1)[0]
    if _root not in map(os.path.realpath, sys.path):
        sys.path.insert(0, _root)
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
