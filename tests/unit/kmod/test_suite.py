"""The command line of scripts/kmod-suite; what it measures is in virtual machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.kmod.suite import command, parse, suite


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("trees a b", "trees TREE TREE"),
        ("series --branch 550 a b", "series --branch 550 TREE TREE"),
        ("series a --branch 550 b", "series --branch 550 TREE TREE"),
        ("sanitized --kernel k --faults 100 a", "sanitized --kernel KERNEL --faults 100 TREE"),
        ("pids --pids 30 --machines 2", "pids --pids 30"),
    ],
)
def test_what_a_result_says_of_its_command_can_be_typed_again(line: str, told: str) -> None:
    command_line = command(parse(line.split()))
    assert command_line == f"scripts/kmod-suite {told}"
    again = parse(command_line.split()[1:])
    assert command(again) == command_line


def test_trees_are_taken_before_and_after_options() -> None:
    assert parse(["series", "a", "--branch", "550", "b"]).trees == [Path("a"), Path("b")]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("series", "kmod-series"),
        ("series --branch 550 a", "kmod-series-trees"),
        ("sanitized --kernel k", "kmod-sanitized"),
        ("sanitized --kernel k a", "kmod-sanitized-trees"),
        ("faults a", "kmod-faults-trees"),
        ("trees a", "kmod-trees"),
        ("trees --debug a", "kmod-trees-debug"),
        ("branches a", "kmod-branches"),
    ],
)
def test_what_trees_add_has_a_file_of_its_own(line: str, told: str) -> None:
    assert suite(parse(line.split())) == told


@pytest.mark.parametrize("line", ["sanitized", "trees", "elsewhere"])
def test_what_lacks_a_part_is_refused(line: str) -> None:
    with pytest.raises(SystemExit):
        parse(line.split())
