"""The real copier, with a fault at one place: MODULE:CLASS.METHOD, before or after its n-th call.

The place comes by the environment variable FAULT_AT: ``module:Class.method|before or after|number|what``, where what is
``kill``, ``stop`` (SIGSTOP: it hangs), or the name of an errno.
"""

import errno
import importlib
import itertools
import os
import signal
import sys
import threading
from typing import Any

VARIABLE = "FAULT_AT"


def commit_fault(what: str) -> None:
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif what == "stop":
        # Of this thread: one for the process is another thread's, and this one may go on until that has it.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
    else:
        raise OSError(getattr(errno, what), os.strerror(getattr(errno, what)))


def arm(place: str) -> None:
    path, moment, number, what = place.split("|")
    module, _, rest = path.partition(":")
    owner: Any = importlib.import_module(module)
    *classes, method = rest.split(".")
    for name in classes:
        owner = getattr(owner, name)
    original = getattr(owner, method)
    calls, lock = itertools.count(1), threading.Lock()

    def wrapped(*arguments: Any, **more: Any) -> Any:
        with lock:
            is_now = next(calls) == int(number)
        if is_now and moment == "before":
            commit_fault(what)
        result = original(*arguments, **more)
        if is_now and moment == "after":
            commit_fault(what)
        return result

    setattr(owner, method, wrapped)


if __name__ == "__main__":
    if VARIABLE in os.environ:
        arm(os.environ[VARIABLE])
    from mpsguard.images.copier.process import main

    os._exit(main(int(sys.argv[1]), int(sys.argv[2])))
