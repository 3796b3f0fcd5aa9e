"""What holds for every test: the process it runs in, the order of files, and which are slow."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# How long an example takes is no property of what is tested: a machine may be busy. The examples of a test are the same
# each time, so that chance decides no run; `make soak` searches with others.
SEARCH = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("search", SEARCH)
settings.register_profile("certain", SEARCH, derandomize=True)
settings.load_profile("certain")

OF_PYTHON = frozenset({signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)})
"""Python itself ignores these."""

FOREIGN_PREFIXES = ("CUDA_", "MPSGUARD_", "NVIDIA_", "NOTIFY_", "LISTEN_", "WATCHDOG_", "LC_", "PYTHON")
FOREIGN_NAMES = ("COLUMNS", "FORCE_COLOR", "LANGUAGE", "LD_PRELOAD", "LINES", "NO_COLOR", "PAGER")
"""Variables that a shell, a service manager or an MPS of the caller may have set and that change what a test sees.

With PYTHONDONTWRITEBYTECODE, which container images set, every guard that a test starts would compile all its modules.
"""


def restore_process_state() -> None:
    """Give this process what a login shell would: signal dispositions, mask, umask, environment, no terminal.

    `nohup`, a service manager or a cron job pass on ignored signals and other things of their own; every process that a
    test starts would inherit them.
    """
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP} - OF_PYTHON:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    for name in list(os.environ):
        if name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES:
            del os.environ[name]
    sys.dont_write_bytecode = False
    # A version manager's `python3` in PATH is a shell script that takes longer than Python's start, of which a run has
    # thousands: the simulated daemon and each of its commands begin with it.
    programs = str(Path(sys.executable).resolve().parent)
    if programs not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([programs, os.environ["PATH"]])
    os.environ.update(LANG="C.UTF-8", LC_ALL="C.UTF-8", TERM="dumb", TZ="UTC")
    if sys.stdin is not None and sys.stdin.isatty():
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)


restore_process_state()

LATE = ("torch", "transformers")
"""Take seconds to import: see `tests/late.py`."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test files, once in each worker: without looking for garbage, of which there is none.

    Nor is it looked for later among what was imported: what pytest collects at its end would take a second and a half.
    """
    before = set(sys.modules)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        early = [name for name in LATE if name in sys.modules and name not in before]
        if early:
            raise pytest.UsageError(f"a test file imports {' and '.join(early)}, in every worker: see tests/late.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that hold slow tests, and give these tests a longer deadline.

    So none of them is left for the end of a parallel run.

    Stable, and the same in every worker, which pytest-xdist requires.
    """
    longest: dict[str, float] = {}
    counted: set[str] = set()
    for item in items:
        found = next(item.iter_markers_with_node("slow"), None)
        if found is None:
            continue
        node, mark = found
        if item.get_closest_marker("timeout") is None:
            # Beside a load of 20, what builds packages took 8 times as long.
            item.add_marker(pytest.mark.timeout(max(240.0, 12.0 * float(mark.kwargs["seconds"]))))
        # A file's own mark is of the whole file, a test's of each of its cases.
        if node is item or node.nodeid not in counted:
            counted.add(node.nodeid)
            scope = scope_of(item.nodeid)
            longest[scope] = longest.get(scope, 0.0) + float(mark.kwargs["seconds"])
    items.sort(key=lambda item: -longest.get(scope_of(item.nodeid), 0.0))


def scope_of(nodeid: str) -> str:
    """What one worker runs: a file, or all virtual machines."""
    file = nodeid.partition("::")[0]
    return "tests/vm" if file.startswith("tests/vm/") else file


class OneMachineAtATime(LoadFileScheduling):
    """A file's tests stay together in one worker, and all virtual machines in one: two of them at a time on two
    processors, emulated, take several times as long as one after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneMachineAtATime | None:
    """Use it for `--dist loadfile`."""
    return OneMachineAtATime(config, log) if config.getvalue("dist") == "loadfile" else None
