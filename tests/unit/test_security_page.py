"""Security and limits: each row says what shows it, what is named is there, and numbers are those of the code."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

from fault_injection.fuzzing.surfaces import IN_PROCESS
from mpsguard.guard.processes.privileges import DENIED
from mpsguard.linux.processes.privileges import Capability
from mpsguard.vault.server.quota import RESERVE, SHARE, Quota

ROOT = Path(__file__).resolve().parents[2]
PAGE = "\n".join(
    (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in ("concepts/security.md", "reference/limits.md", "reference/privileges.md")
)

SHOWN = re.compile(r"`((?:hostile|unit|integration|vm)/[\w/]+)(?:::(\w+))?`")
"""A test file, without `tests/`, `test_` and `.py`; behind `::` a test of it, without `test_`."""
BRACKET = re.compile(r" \[([^\[\]]*(?:\[[^\[\]]*\]\([^()]*\)[^\[\]]*)*)\] \|$")
"""The bracket at the end of a row."""
SAYS = re.compile(r"`(?:hostile|unit|integration|vm|scripts)/[\w/-]+|figure|not tested")

WITHOUT: Final = {
    "| trusted | not trusted |": "says who is trusted",
    "| surface | what is fuzzed |": "compared with the surfaces below",
    "| capability kept | reason |": "its bracket stands before it",
    "| system calls denied (EPERM) | reason |": "its bracket stands before it",
    "| gap | what an attacker gains | what to do |": "promises nothing",
}
"""Tables without brackets, by their head, and why."""

BOUNDS: Final = (
    (
        "{} wait for a user, {} in all, at each public",
        "guard.broker.reception:_WAITING_OF_A_USER",
        "guard.broker.reception:_WAITING",
    ),
    ("{} of a user other than root, in each domain", "guard.broker.broker:MAX_CLIENTS_OF_A_USER"),
    ("{} for a user other than root, at each public directory", "guard.broker.connection_table:_SILENT_OF_A_USER"),
    ("{} of a user in a pass", "linux.sockets.user_turns:QUOTA"),
    ("a quarter ({}) for a user", "guard.sensors.uvm_shares:MOST_OF_A_USER"),
    ("{} are root's alone; {} in all", "guard.sensors.uvm_shares:ROOTS", "guard.sensors.uvm_shares:MOST"),
    ("{} address spaces, 4 other files", "guard.sensors.uvm_look:MAX_SPACES_OF_A_CLIENT"),
    ("4 other files, {} descriptors [", "linux.descriptors.foreign_fd:MAX_COPIES"),
    ("{} a look", "linux.descriptors.foreign_fd:MAX_LOOKED_AT"),
    (
        "{} times; {} files of a user that wait",
        "guard.sensors.uvm_client:MAX_EXCHANGES",
        "guard.sensors.uvm_look:MAX_TRAPS",
    ),
    ("| {} of a user, {} in all [", "guard.sensors.uvm:_LOOKERS_OF_A_USER", "guard.sensors.uvm:_LOOKERS"),
    ("{} of a client, or behind a command line's end", "guard.broker.relay:MAX_WORDS"),
    ("{} of a user other than root at once, and as many", "guard.control_api.event_stream:LINES_OF_A_USER"),
    ("{} at once, 64 that wait", "guard.metrics.server:MOST_AT_ONCE"),
    ("at once, {} that wait, 5 s for each read", "guard.metrics.server:_WAITING"),
    ("{} turns at once", "guard.lanes.lane_turns:AT_ONCE"),
    (
        "{} commands that set something wait, {} of",
        "guard.lanes.levers:_MAX_COMMANDS",
        "guard.lanes.levers:_MAX_COMMANDS_OF_A_USER",
    ),
    ("{} of the guard, 16 of a user, 256 of all users", "guard.lanes.command:MAX_OWN"),
    (
        "of the guard, {} of a user, {} of all users",
        "guard.lanes.command:MAX_OF_A_USER",
        "guard.lanes.command:MAX_OF_USERS",
    ),
    ("{} of a user, {} of all [", "guard.remedies.held_lifelines:MOST_OF_A_USER", "guard.remedies.held_lifelines:MOST"),
    (
        "{} descriptors of a user, {} of all; 1,280",
        "guard.remedies.held_lifelines:MOST_STORED_OF_A_USER",
        "guard.remedies.held_lifelines:MOST_STORED",
    ),
    ("| users with a porter at a time | {};", "vault.server.porters:PORTERS_MOST"),
    ("| children that close descriptors, of a user | {} ", "vault.server.porter:CLOSERS_MOST"),
    ("not passed on, of a connection | {} ", "linux.sockets.seqpacket:KERNEL_MAX_FDS"),
    ("not read by it, of a connection | {},", "linux.descriptors.unread:UNREAD_FDS_MOST"),
    ("judged together | {} | {} |", "guard.triage.rolling:_SHARE", "guard.triage.rolling:_MOST"),
    ("(teardown lines, dumps) | {} | {} |", "guard.triage.rolling:_SHARE_OTHERS", "guard.triage.rolling:_MOST_OTHERS"),
    (
        "ended clients remembered | {} | {} |",
        "guard.triage.rolling:_SHARE_DEPARTED",
        "guard.triage.rolling:_MOST_DEPARTED",
    ),
    ("given to the journal | {} at once", "guard.incidents.tracker:_EVIDENCE_SHARE"),
    ("a client's own end | {} at once", "guard.incidents.tracker:_CRASH_SHARE"),
    (
        "written or read | {}, and 1 s of reading | {} |",
        "guard.sensors.core_directory:_SHARE",
        "guard.sensors.core_directory:_MOST",
    ),
    ("| a core file | {} sections", "guard.sensors.gpu_core:_MOST_SECTIONS"),
    ("one look at each of at most {} slots", "preload.zone_table:_MOST_SLOTS"),
    ("waits at most 2 s for its turn, and at most {} of one uid wait", "linux.processes.process_reader:_MAX_WAITING"),
    ("Kubernetes allows, {} pods at most", "guard.pods:MAX_PODS"),
)
"""Places of the page, and the constants (below `mpsguard`) that stand in them."""


def _rows() -> list[tuple[str, str]]:
    """The rows of all tables, each with the head of its table."""
    rows, head = [], ""
    lines = PAGE.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if not line.startswith("|"):
            head = ""
        elif not head:
            head = line
            assert following.startswith("| --- |"), line
        elif not line.startswith("| --- |"):
            rows.append((head, line))
    return rows


def _tests(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_is_named_is_there() -> None:
    missing = []
    named = SHOWN.findall(PAGE)
    assert len(named) > 100
    for file, test in named:
        folder, _, name = file.rpartition("/")
        path = ROOT / "tests" / folder / f"test_{name}.py"
        if not path.is_file() or (test and f"test_{test}" not in _tests(path)):
            missing.append(f"{file}::{test}")
    assert missing == []


def test_every_row_says_what_shows_it() -> None:
    rows = _rows()
    assert set(WITHOUT) - {head for head, _ in rows} == set()
    silent = [
        row
        for head, row in rows
        if head not in WITHOUT and not ((found := BRACKET.search(row)) and SAYS.search(found[1]))
    ]
    assert silent == []


def test_every_promising_section_names_tests() -> None:
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    assert [section.splitlines()[0] for section in sections if not SHOWN.search(section)] == ["Not closed"]


@pytest.mark.parametrize(("place", "constants"), [(place, constants) for place, *constants in BOUNDS])
def test_a_bound_is_the_codes(place: str, constants: list[str]) -> None:
    numbers = []
    for constant in constants:
        module, _, name = constant.partition(":")
        numbers.append(getattr(importlib.import_module(f"mpsguard.{module}"), name))
    assert place.format(*[f"{number:,}" for number in numbers]) in PAGE


def test_the_bounds_of_the_vault_are_the_quotas() -> None:
    quota = Quota()
    for said in (
        f"| connections | {quota.connections_per_uid} | {quota.connections};",
        f"a quarter ({quota.bundles // SHARE}); root may have all | {quota.bundles};",
        f"| chunks | {quota.chunks_per_uid} | {quota.chunks} ",
        f"| {quota.host_bytes_per_uid >> 30} GiB, `host_bytes_per_user` |",
        f"| metadata of regions | {quota.metadata_per_uid >> 20} MiB |",
    ):
        assert said in PAGE
    assert "An eighth of each total is reserved for root" in PAGE
    assert RESERVE == 8


def test_the_units_weight_and_store_are_the_codes() -> None:
    unit = (ROOT / "distribution" / "systemd" / "mpsguard.service").read_text(encoding="utf-8")
    for setting, said in (
        ("CPUWeight=1000", "`CPUWeight=1000`"),
        ("FileDescriptorStoreMax=1280", "1,280 with the vault's"),
    ):
        assert f"\n{setting}\n" in unit
        assert said in PAGE


def _first_cells(head: str) -> str:
    return "\n".join(row.split("|")[1] for its, row in _rows() if its.startswith(f"| {head} |"))


def test_the_capabilities_are_those_that_are_kept() -> None:
    named = re.findall(r"CAP_(\w+)", _first_cells("capability kept"))
    assert sorted(named) == sorted(capability.name for capability in Capability)


def test_the_system_calls_that_are_named_are_denied() -> None:
    """Groups that have a name of their own ("mounts") are not compared."""
    cells = _first_cells("system calls denied (EPERM)")
    calls = {call for group in DENIED.values() for call in group}
    named = set(re.findall(r"[a-z]+_[a-z_]+", cells)) - {"io_uring"} | {"chroot", "setns", "unshare", "bpf", "ptrace"}
    assert named <= calls
    assert [call for call in named if call not in cells] == []


def test_each_surface_is_in_the_table() -> None:
    cells = _first_cells("surface").casefold()
    assert [name for name in IN_PROCESS if name.casefold() not in cells] == []
