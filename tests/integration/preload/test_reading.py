"""The zone table of a living program, read from outside as the guard does."""

from __future__ import annotations

import os
import re
import subprocess
from typing import NamedTuple

from mpsguard.preload import build, zone_table
from mpsguard.preload.library import PreloadSettings
from mpsguard.preload.zone_table import Part
from tests.integration.preload.bench import SECONDS, Bench


def test_the_counters_have_the_same_names() -> None:
    text = (build.SOURCES / "counters.h").read_text(encoding="ascii")
    assert tuple(re.findall(r"X\((\w+)\) +/\*", text)) == zone_table.COUNTERS


class Seen(NamedTuple):
    """What a program that has ended had in its table, and what it said."""

    pid: int
    user: int
    """Address of an allocation."""
    table: zone_table.ZoneTable


def see(bench: Bench, scenario: str) -> Seen:
    with subprocess.Popen(
        [str(bench.directory / "program"), "dlsym", scenario],
        env=bench.environment(PreloadSettings()),
        cwd=bench.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        user = int(program.stdout.readline())
        directory = f"/proc/{program.pid}/fd"
        (number,) = [n for n in os.listdir(directory) if os.readlink(f"{directory}/{n}") == zone_table.LINK]
        fd = os.open(f"{directory}/{number}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            program.communicate("", timeout=SECONDS)
            # The copy outlives the program, and so does what it says.
            found = zone_table.read(fd)
        finally:
            os.close(fd)
    assert program.returncode == 0
    return Seen(program.pid, user, found)


def test_a_child_counts_in_no_table(plain: Bench) -> None:
    assert see(plain, "child_loads").table.counters["rebound"] == 0


def test_a_region_of_a_living_program(plain: Bench) -> None:
    pid, user, found = see(plain, "waits_for_reader")
    assert (found.pid, found.unreadable) == (pid, 0)
    assert (found.counters["placed"], found.counters["freed"]) == (2, 1)
    (region,) = found.regions
    assert (region.user, region.size, region.number) == (user, 3 * (1 << 20) + 5, 2)
    assert region.front_armed
    assert region.back_armed
    place = found.locate(user + region.size + 1000)
    assert place is not None
    assert (place.part, place.armed, place.beyond) == (Part.BACK, True, 1001)
