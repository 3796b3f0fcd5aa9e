"""What the suite's workers need to have imported: by the template of the pool, once for all of them."""

import os
import time
from importlib import import_module

import psutil

from tests.bench.start.models import KINDS
from tests.bench.start.place import KIND

import_module(KINDS[os.environ[KIND]].library)
import_module("tests.bench.start.prepared")
SECONDS = time.time() - psutil.Process().create_time()
"""From the start of the process."""
