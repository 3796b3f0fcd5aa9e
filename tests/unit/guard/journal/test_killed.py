"""The guard is killed at any moment: what was acknowledged is there, and nothing is there by half."""

import random
import select
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from mpsguard.guard.journal.journal import Journal
from tests.harness.tree import ROOT
from tests.unit.guard.journal.incidents import wait

pytestmark = pytest.mark.slow(seconds=12, reason="kills a writer a few hundred times")

ROUNDS = 32


def killed(path: Path, lines: int, after: float) -> list[tuple[str, str]]:
    """Kill the writer ``after`` seconds behind so many acknowledgements; return all of its acknowledgements."""
    program = [sys.executable, "-m", "tests.unit.guard.journal.writer_program", str(path)]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        said = [child.stdout.readline() for _ in range(lines)]
        # At once, or anywhere within: the moment is the subject of this test, nothing waits for it to have passed.
        select.select([], [], [], after)
        child.send_signal(signal.SIGKILL)
        said += child.stdout.read().splitlines(keepends=True)
    whole = [line.split() for line in said if line.endswith("\n")]
    return [(name, number) for name, number in whole]


def test_what_was_acknowledged_outlives_sigkill_and_nothing_is_there_by_half(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    chance = random.Random(20261120)
    acknowledged: dict[str, str] = {}
    for number in range(ROUNDS):
        # In every second round from the first acknowledgement on, however long the machine took to come to it.
        lines = number % 2
        said = killed(path, lines, chance.uniform(0, 0.15))
        assert len(said) >= lines
        assert not set(acknowledged) & {name for name, _ in said}, "an id was given out twice"
        acknowledged.update(said)
        journal = Journal.open(path)
        kept = {summary.id: summary for summary in wait(journal.list(1_000_000))}
        last = journal.recall("last")
        newest = wait(journal.get(next(iter(kept)))) if kept else None
        journal.close()
        assert set(acknowledged) <= set(kept)
        assert all(kept[name].reason == number for name, number in acknowledged.items())
        if newest is not None:
            # One transaction has all of a batch's records or none: nothing is ever ahead of what came before it.
            assert newest.incident.culprit is not None
            assert len(newest.incident.evidence) == 2
            assert last is not None
            assert int(last) <= int(newest.incident.reason)
        assert list(tmp_path.glob("*damaged*")) == []
        with sqlite3.connect(path) as database:
            assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
            pieces = database.execute("SELECT count(*) FROM evidence").fetchone()[0]
            assert pieces >= 2 * len(kept), "an incident came to the disk before its evidence"
        database.close()
