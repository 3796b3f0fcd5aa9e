"""One way out for every end from outside: the run's deadline, SIGTERM, Ctrl-C."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRunError(Exception):
    """The run must end now; what it started is ended on the way out."""


class _Postponed:
    """Of this process, as its signal handlers are: how many blocks must not be interrupted, and why the run ends."""

    blocks = 0
    reason: str | None = None


@contextmanager
def stoppable(seconds: float) -> Iterator[None]:
    """Raise StopRunError in the block after `seconds`, on SIGTERM, on SIGINT; once, so that clean-up is undisturbed."""

    def stop(number: int, _frame: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        name = signal.Signals(number).name
        reason = f"over the deadline of {seconds:g} s" if name == "SIGALRM" else f"stopped by {name}"
        if not _Postponed.blocks:
            raise StopRunError(reason)
        _Postponed.reason = reason

    signals = (signal.SIGALRM, signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, stop) for each in signals}
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for each, handler in before.items():
            signal.signal(each, handler)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Raise StopRunError only when the block is done: for what has no owner, or no whole state, until then.

    An example is `threading.Thread.start`: an exception between the start of the thread and the end of that method
    takes from the thread what it needs to run (CPython 3.11, `_limbo`).
    """
    _Postponed.blocks += 1
    try:
        yield
    finally:
        _Postponed.blocks -= 1
        if not _Postponed.blocks and (reason := _Postponed.reason) is not None:
            _Postponed.reason = None
            raise StopRunError(reason)
