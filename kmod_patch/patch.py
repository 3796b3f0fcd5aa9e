"""What the rules make of a tree, worked out on copies: nothing is written until every rule has matched as it must."""

import difflib
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch import VERSION
from kmod_patch.errors import RuleError, ToolError, TreeError
from kmod_patch.rules import RULES, Rule
from kmod_patch.tree import Tree, branch_header

SOURCE: Final = Path(__file__).resolve().parent / "source"
OWN_SOURCES: Final = (
    "uvm_fault_isolation.c",
    "uvm_fault_isolation_block.c",
    "uvm_fault_isolation_sink.c",
    "uvm_fault_report.c",
)
OWN_FILES: Final = (*OWN_SOURCES, *(name.replace(".c", ".h") for name in OWN_SOURCES))
BRANCH_HEADER: Final = "uvm_fault_isolation_branch.h"
KBUILD: Final = "nvidia-uvm-sources.Kbuild"
KBUILD_LINES: Final = "".join(f"NVIDIA_UVM_SOURCES += nvidia-uvm/{name}\n" for name in OWN_SOURCES)
SPATCH_DEADLINE_S: Final = 120.0

_TOP_LEVEL: Final = re.compile(r"^(?:struct (?P<struct>\w+)|[A-Za-z_][\w \t*]*?\b(?P<function>\w+)\()")
"""The head of a function or a structure: the vendor's code, like the kernel's, begins it in the first column."""


class Match(msgspec.Struct, frozen=True):
    """Where a rule applied."""

    rule: str
    file: str
    function: str
    line: int
    """In the text as it is after all rules for that file so far."""


class Plan(msgspec.Struct, frozen=True):
    """Every file of nvidia-uvm/ that changes or comes new, with its text before ("" if new) and after."""

    tree: Tree
    before: dict[str, str]
    after: dict[str, str]
    matches: tuple[Match, ...]

    def diff(self) -> str:
        """The change as a unified diff."""
        parts: list[str] = []
        for name in sorted(self.after):
            old, new = self.before[name], self.after[name]
            origin = f"a/nvidia-uvm/{name}" if old else "/dev/null"
            parts += difflib.unified_diff(
                old.splitlines(keepends=True), new.splitlines(keepends=True), origin, f"b/nvidia-uvm/{name}"
            )
        return "".join(parts)


def make_plan(tree: Tree) -> Plan:
    """What is to change in a stock tree; raises RuleError, TreeError or ToolError."""
    if shutil.which("spatch") is None:
        raise ToolError("spatch is not installed; it comes with Coccinelle (Debian: coccinelle)")
    before = {name: _read(tree.uvm / name) for name in [*dict.fromkeys(rule.file for rule in RULES), KBUILD]}
    after = dict(before)
    matches: list[Match] = []
    with tempfile.TemporaryDirectory(prefix="mpsguard-kmod-") as scratch:
        for rule in RULES:
            changed = _run(rule, after[rule.file], Path(scratch))
            found = _matches(rule, after[rule.file], changed)
            _check(rule, tree, found)
            matches += found
            after[rule.file] = changed
    after[KBUILD] = before[KBUILD].rstrip("\n") + "\n" + KBUILD_LINES
    for name in OWN_FILES:
        before[name], after[name] = "", (SOURCE / name).read_text(encoding="utf-8")
    before[BRANCH_HEADER], after[BRANCH_HEADER] = "", branch_header(tree, VERSION)
    return Plan(tree, before, after, tuple(matches))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise TreeError(f"{path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise TreeError(f"{path}: is not a text in UTF-8") from None


def _run(rule: Rule, text: str, scratch: Path) -> str:
    source = scratch / rule.file
    source.write_text(text, encoding="utf-8")
    command = ["spatch", "--no-includes", "--very-quiet", "--in-place", "--sp-file", str(rule.path), str(source)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=SPATCH_DEADLINE_S
        )
    except subprocess.TimeoutExpired:
        raise ToolError(f"rule {rule.name}: spatch did not end within {SPATCH_DEADLINE_S:.0f} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ToolError(f"rule {rule.name}: spatch failed on {rule.file}: {last}")
    return source.read_text(encoding="utf-8")


def _matches(rule: Rule, before: str, after: str) -> list[Match]:
    old, new = before.splitlines(), after.splitlines()
    found = []
    for tag, _, _, start, end in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if tag in {"insert", "replace"}:
            found += [
                Match(rule.name, rule.file, function_at(new, line), line + 1)
                for line in range(start, end)
                if rule.marker in new[line]
            ]
    return found


def function_at(lines: list[str], line: int) -> str:
    """The function or structure that holds a line; "" if it is in none."""
    for at in range(line, -1, -1):
        if lines[at].startswith("}") and at != line:
            return ""
        head = _TOP_LEVEL.match(lines[at])
        if head is not None and not lines[at].rstrip().endswith(";"):
            return head["struct"] or head["function"]
    return ""


def _check(rule: Rule, tree: Tree, found: list[Match]) -> None:
    counts = Counter(match.function for match in found)
    for place in rule.places:
        got = sum(counts.pop(name, 0) for name in place.names)
        if got != place.count:
            where = " or ".join(name or "its head" for name in place.names)
            raise RuleError(
                f"rule {rule.name}: {tree.uvm / rule.file}: {where}: matches {got} times, must be {place.count}"
            )
    for function, got in counts.items():
        where = function or "outside of functions"
        raise RuleError(f"rule {rule.name}: {tree.uvm / rule.file}: {where}: matches {got} times, must be 0")
