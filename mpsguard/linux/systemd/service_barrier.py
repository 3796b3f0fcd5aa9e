"""Wait until the service manager has dealt with everything it was told so far (sd_notify_barrier(3))."""

import os
import select

from mpsguard.linux.systemd import service_manager


def barrier(deadline: float) -> bool:
    """Block until then; False if there is no service manager, or if it took longer than ``deadline`` seconds.

    systemd 246 and later close the descriptor that came with BARRIER=1 when its turn comes; earlier ones at once,
    as they do with every descriptor that they do not know what to do with.
    """
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            if not service_manager.notify("BARRIER=1", fds=(theirs,)):
                return False
        finally:
            os.close(theirs)
        poller = select.poll()
        poller.register(ours, 0)
        # Nothing is asked for: what is reported is the hang-up.
        return bool(poller.poll(deadline * 1000))
    finally:
        os.close(ours)
