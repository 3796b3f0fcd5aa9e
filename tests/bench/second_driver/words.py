"""What programs say of their second drivers while they run: would they live through a fault, and if not, why.

It is the word that the guard reads of its clients, from the same place and by the same reader, and shows in column
SURVIVES. Read here because the guard looks every two seconds, and many of these programs run for less. The guard adds
to it whether there is another lane, and whether a fault has taken a second driver: with two lanes and no fault,
nothing.
"""

import os
import time
from collections import defaultdict
from contextlib import suppress
from typing import Final, Self

from mpsguard.linux.descriptors import foreign_fd
from mpsguard.preload import second_claim, zone_table
from mpsguard.preload.second_claim import SecondClaim
from mpsguard.preload.zone_table import TableError

YES: Final = "yes"


def word(claim: SecondClaim) -> str:
    """`YES`, or why not: the name of the reason, or of a phase that needs none."""
    if claim.may_go_over:
        return YES
    return claim.reason or claim.phase.name.lower()


class Words:
    """Of one process, from its first word to its end."""

    def __init__(self, pid: int) -> None:
        """``pid``: a child of this process that has not been reaped."""
        self._pid = pid
        self._table = -1
        self._last = ""
        self._since = 0.0
        self.seconds = defaultdict[str, float](float)
        """For how long it said what."""

    @property
    def last(self) -> str:
        """What it said last; empty: nothing."""
        return self._last

    @property
    def longest(self) -> str:
        """What it said for longest; empty: nothing."""
        return max(self.seconds, key=lambda name: self.seconds[name], default="")

    def look(self) -> None:
        """Look once; the time since the look before counts for what was said then."""
        claim: SecondClaim | None = None
        with suppress(OSError, TableError):
            if self._table < 0:
                self._find()
            if self._table >= 0:
                claim = second_claim.read(self._table)
        if claim is not None:
            self.say(word(claim), time.monotonic())

    def say(self, said: str, now: float) -> None:
        """Take note of a word, at seconds of CLOCK_MONOTONIC."""
        self.seconds[self._last or said] += now - self._since if self._last else 0.0
        self._last, self._since = said, now

    def close(self) -> None:
        """Look for the last time, also at a process that has ended, of which the table is still here."""
        if self._table >= 0:
            self.look()
            os.close(self._table)
            self._table = -1

    def _find(self) -> None:
        """Find the table with a claim in it: a program may have others."""
        pidfd = os.pidfd_open(self._pid)
        try:
            for file in foreign_fd.memory_files(pidfd, self._pid, zone_table.LINK, zone_table.MOST_OF_A_PROCESS):
                with suppress(OSError, TableError):
                    if self._table < 0 and second_claim.read(file) is not None:
                        self._table = file
                if file != self._table:
                    os.close(file)
        finally:
            os.close(pidfd)


class Survival:
    """Of one run of a program, all its processes together."""

    def __init__(self, longest: str, last: str) -> None:
        """Of each: `YES`, a reason, or "" where no process has said anything."""
        self.longest = longest
        self.last = last

    @classmethod
    def of(cls, processes: list[Words]) -> Self:
        """Of several processes, what keeps one of them from living keeps the program."""
        said = [each for each in processes if each.last]
        return cls(_worst([each.longest for each in said]), _worst([each.last for each in said]))


def _worst(words: list[str]) -> str:
    return next((each for each in words if each != YES), YES if words else "")
