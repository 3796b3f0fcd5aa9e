"""One way out for every end from outside: the run's deadline, SIGTERM, Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRunError(Exception):
    """The run must end now; what it started is ended on the way out."""


@contextmanager
def stoppable(seconds: float) -> Iterator[None]:
    """Raise StopRunError in the block after `seconds`, on SIGTERM, on SIGINT; once, so that clean-up is undisturbed."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        name = signal.Signals(number).name
        raise StopRunError(f"over the deadline of {seconds:g} s" if name == "SIGALRM" else f"stopped by {name}")

    signals = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, stop) for each in signals}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)
