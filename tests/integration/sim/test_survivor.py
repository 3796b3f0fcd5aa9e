"""The programs of docs/guides/survive.md, under a real guard: killed, taken over, and both processes killed."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.running import Running
from tests.integration.sim.test_takeover import FailoverPair
from tests.late import require

pytestmark = pytest.mark.slow(seconds=60, reason="kills a program and its standby")

STEPS = 1_000_000


@pytest.fixture
def pair() -> Iterator[FailoverPair]:
    with FailoverPair() as running:
        running.start()
        yield running
        running.ctl("vault", "release", str(os.getuid()), "survivor")


class Survivor:
    """`mpsguard run --standby 1 -- python -m examples.survivor`; its lines are read from a file."""

    def __init__(self, pair: FailoverPair, name: str) -> None:
        self._pair = pair
        self._out = pair.root / name
        self._pids: set[int] = set()
        command = [sys.executable, "-m", "examples.survivor", str(STEPS)]
        shell = ["sh", "-c", 'exec "$@" >>"$0"', str(self._out), *command]
        options = ("--config", str(pair.config), "--standby", "1")
        self.running = Running(pair.root, options, shell, {**os.environ, "PYTHONPATH": str(REPOSITORY)})

    def sums(self) -> list[tuple[int, int]]:
        """Steps and sums, as far as they were written down."""
        if not self._out.exists():
            return []
        lines = self._out.read_text(encoding="ascii").splitlines(keepends=True)
        return [(int(step), int(total)) for step, total in (line.split() for line in lines if line.endswith("\n"))]

    def both_at_work(self) -> tuple[int, int]:
        """The pids of writer and standby, once the one counts and the other is ready."""

        def look() -> tuple[int, int] | None:
            done = self._pair.ctl("--json", "vault", "show", str(os.getuid()), "survivor")
            leases = [] if done.returncode else json.loads(done.stdout)["leases"]
            self._pids |= {lease["pid"] for lease in leases}
            writers = [lease["pid"] for lease in leases if lease["role"] == "writer"]
            ready = [lease["pid"] for lease in leases if lease["role"] == "standby" and lease["ready"]]
            return (writers[0], ready[0]) if len(writers) == len(ready) == 1 else None

        pids = wait_for("a writer and a ready standby", look)
        counted = len(self.sums())
        wait_for("further sums", lambda: len(self.sums()) > counted + 1)
        return pids

    def close(self) -> None:
        if self.running.process.poll() is None:
            self.running.process.terminate()
            self.running.wait()
        self.running.close()
        for pid in self._pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def assert_all_right(sums: list[tuple[int, int]]) -> None:
    """No sum is wrong and no step is left out, but for one that was not told, or told twice, by a process that died."""
    assert [total for _, total in sums] == [step * (step + 1) // 2 for step, _ in sums]
    steps = [step for step, _ in sums]
    assert all(0 <= after - before <= 2 for before, after in itertools.pairwise(steps)), steps


def test_it_goes_on_after_its_death_and_after_that_of_both(pair: FailoverPair) -> None:
    first = Survivor(pair, "first")
    try:
        active, standby = first.both_at_work()
        os.kill(active, signal.SIGKILL)
        promoted, _ = first.both_at_work()
        assert promoted == standby
        # The supervisor first: else it would start others.
        first.running.process.kill()
        first.running.wait()
        for pid in first.both_at_work():
            os.kill(pid, signal.SIGKILL)
        reached = first.sums()
        assert_all_right(reached)
    finally:
        first.close()
    second = Survivor(pair, "second")
    try:
        second.both_at_work()
        went_on = second.sums()
        assert_all_right(went_on)
        assert went_on[0][0] >= reached[-1][0]
    finally:
        second.close()


def test_the_one_on_a_gpu_says_what_it_misses() -> None:
    """It is run for real where there is a GPU; here it must get as far as the driver."""
    require("torch")
    compiled = subprocess.run(
        [sys.executable, "-c", "import examples.survivor_cuda"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
    )
    assert compiled.returncode == 0, compiled.stderr
