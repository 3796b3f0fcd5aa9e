"""What a template imports in the tests: each import is counted, and files say what is wrong with it."""

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

FOLDER = Path(os.environ["POOL_TEST"])
(FOLDER / f"imported by {os.getpid()}").touch()
PID = os.getpid()

if (FOLDER / "import-hangs").exists():
    threading.Event().wait()
if "POOL_STALLS" in os.environ:
    # From where no signal gets a process.
    Path(os.environ["POOL_STALLS"]).read_bytes()
if (FOLDER / "import-dies").exists():
    (FOLDER / "import-dies").unlink()
    os.kill(os.getpid(), signal.SIGKILL)
if (FOLDER / "import-prints").exists():
    sys.stdout.write("from Python\n")
    ctypes.CDLL(None).puts(b"from C")
if (FOLDER / "import-breaks-stdout").exists():
    reader, writer = os.pipe()
    os.close(reader)
    sys.stdout = os.fdopen(writer, "w")
    sys.stdout.write("for nothing")
if (FOLDER / "import-closes-stdout").exists():
    # As Python has it where the descriptor is closed.
    sys.stdout = None
if (FOLDER / "import-ignores-children").exists():
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
if (FOLDER / "import-threads").exists():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
