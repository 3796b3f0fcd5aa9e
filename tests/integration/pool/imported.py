"""What a template imports in the tests: each import is counted, and files say what is wrong with it."""

import os
import signal
import threading
import time
from pathlib import Path

FOLDER = Path(os.environ["POOL_TEST"])
(FOLDER / f"imported by {os.getpid()}").touch()
PID = os.getpid()

if (FOLDER / "import-hangs").exists():
    threading.Event().wait()
if (FOLDER / "import-dies").exists():
    (FOLDER / "import-dies").unlink()
    os.kill(os.getpid(), signal.SIGKILL)
if (FOLDER / "import-threads").exists():
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
