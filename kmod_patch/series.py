"""The change as a series of patches for the vendor's own repository, for a reader that has the tree.

It differs from what is built in three things. Each patch is one part of the change, and the driver compiles after each.
Macros that stand for a difference between branches are replaced by their one form. What only `mpsguard-kmod` needs is
left out. Coccinelle does that to our own files, as it applies the rules to the vendor's.
"""

import difflib
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch.errors import RuleError
from kmod_patch.patch import BRANCH_HEADER, SOURCE, make_plan, own_files, transform
from kmod_patch.rules import RULES
from kmod_patch.tree import Tree, branch_forms


class Part(msgspec.Struct, frozen=True):
    """One part of the change: the files, functions and types with names that begin with ``prefix``."""

    name: str
    prefix: str
    title: str
    text: str


CONTAINMENT: Final = Part(
    "containment",
    "uvm_fault_isolation",
    "uvm: contain fatal faults of one client of a shared TSG",
    """\
A fault that cannot be serviced is cancelled, and firmware then tears the whole TSG down. Where clients share one, as
under MPS, all of them end for the fault of one.

Make the address resolve instead: to a sink of sparse entries in the page tables of that client alone. Then replay the
access. Before the first entry is written the VA space is poisoned: it gets no new range, mapping or channel, so that
nothing is ever mapped over a sink. What no entry in a page table cures is cancelled as before.

Off by default: uvm_fault_isolation=1 contains faults where the TSG is shared, 2 everywhere.
""",
)
TEST: Final = Part(
    "test",
    "uvm_fault_isolation_test",
    "uvm: test the containment of faults",
    """\
UVM_TEST_FAULT_ISOLATION contains faults that no access took, in the calling VA space, and looks at what is refused and
what is not. That accesses to the address are absorbed then is for the caller to see.
""",
)
REPORT: Final = Part(
    "report",
    "uvm_fault_report",
    "uvm: report contained faults",
    """\
Tell an agent which client's faults were contained, and the client that it computes with values that are not its own.
Without an agent that listens nothing is contained; so containment can be on by default where the TSG is shared.
""",
)
PARTS: Final = (CONTAINMENT, TEST, REPORT)

_ON: Final = "static uint uvm_fault_isolation = POLICY_SHARED_TSG;"
_OFF: Final = "static uint uvm_fault_isolation = POLICY_NEVER;"
MACROS: Final = "UVM_ISOLATION_"
"""Names of those that stand for a difference between branches begin so."""
_COMMENT: Final = r"(?:^[ \t]*/\*(?:[^*]|\*(?!/))*\*/\n)?"
"""One that ends in the line before."""


class Patch(msgspec.Struct, frozen=True):
    """One patch of the series."""

    name: str
    """Of its file."""
    text: str


def part_of(text: str) -> Part:
    """Return the part to which a file, or a line with which a rule marks a place, belongs."""
    return next((part for part in reversed(PARTS) if part.prefix in text), CONTAINMENT)


def series(tree: Tree, source: Path = SOURCE) -> list[Patch]:
    """Return the patches for a stock tree, each on top of those before.

    Args:
        tree: The tree; it is not written to.
        source: Where our own files are.

    Raises:
        KmodError: A rule does not fit, or a part cannot be told from the others.
    """
    inside = "kernel-open/nvidia-uvm" if tree.root.name == "kernel-open" else "nvidia-uvm"
    own = own_files(source)
    present = [part for part in PARTS if any(part_of(name) is part for name in own)]
    before: dict[str, str] = {}
    patches = []
    for number, part in enumerate(present, start=1):
        chosen = present[:number]
        plan = make_plan(
            tree,
            own={name: _own(tree, source / name, chosen) for name in own if part_of(name) in chosen},
            rules=[rule for rule in RULES if part_of(rule.marker) in chosen],
        )
        before = {**plan.before, **before}
        head = f"Subject: [PATCH {number}/{len(present)}] {part.title}\n\n{part.text}\n---\n"
        diff = "".join(_diff(f"{inside}/{name}", before[name], text) for name, text in sorted(plan.after.items()))
        patches.append(Patch(f"{number:04d}-{part.name}.patch", f"{head}\n{diff}"))
        before |= plan.after
    return patches


def _diff(name: str, old: str, new: str) -> str:
    if old == new:
        return ""
    lines = difflib.unified_diff(
        old.splitlines(keepends=True),
        new.splitlines(keepends=True),
        f"a/{name}" if old else "/dev/null",
        f"b/{name}",
    )
    created = "" if old else "new file mode 100644\n"
    return f"diff --git a/{name} b/{name}\n{created}{''.join(lines)}"


def _own(tree: Tree, source: Path, chosen: Sequence[Part]) -> str:
    text = source.read_text(encoding="utf-8")
    text = text.replace(f'#include "{BRANCH_HEADER}"\n', "")
    # For `mpsguard-kmod status`: whether the module is ours.
    text = "\n\n".join(part for part in text.split("\n\n") if "UVM_ISOLATION_VERSION" not in part)
    if REPORT not in chosen:
        text = text.replace(_ON, _OFF)
    later = [part for part in PARTS if part not in chosen and part.prefix in text]
    for part in later:
        text = re.sub(rf'^#include "{part.prefix}\w*\.h"\n', "", text, flags=re.MULTILINE)
        text = re.sub(rf"{_COMMENT}^[ \t]*{part.prefix}\w*_t \w+;\n\n?", "", text, flags=re.MULTILINE)
    rules = [*(_without(part) for part in later), *_forms(tree, text)]
    if rules:
        with tempfile.TemporaryDirectory(prefix="mpsguard-kmod-") as scratch:
            path = Path(scratch) / "series.cocci"
            path.write_text("\n".join(rules), encoding="utf-8")
            text = transform(path, source.name, text, Path(scratch), literal=True)
    for part in later:
        if part.prefix in text:
            line = next(line.strip() for line in text.splitlines() if part.prefix in line)
            raise RuleError(f"{source}: {line}: cannot be left out of a patch without {part.name}")
    for member in _members(source.parent, [part for part in PARTS if part not in chosen]):
        if re.search(rf"(?:->|\.){member}\b", text) is not None:
            raise RuleError(f"{source}: {member}: is a member that a patch without its part does not have")
    if (macro := re.search(rf"\b{MACROS}\w+", text)) is not None:
        raise RuleError(f"{source}: {macro[0]}: is not used in a way that its form could take its place")
    return text


def _members(directory: Path, parts: Sequence[Part]) -> set[str]:
    """Return the names of members that have a type of one of the parts."""
    headers = [path.read_text(encoding="utf-8") for path in directory.glob("*.h")]
    return {
        name
        for part in parts
        for text in headers
        for name in re.findall(rf"^[ \t]+{part.prefix}\w*_t (\w+);", text, re.MULTILINE)
    }


def _without(part: Part) -> str:
    """A semantic patch: no call to a part, and nothing that depends on the answer of one."""
    return f"""\
@@
identifier F =~ "^{part.prefix}";
expression list ES;
@@
- F(ES);

@@
identifier F =~ "^{part.prefix}";
expression list ES;
statement S;
@@
- if (<+... F(ES) ...+>) S
"""


def _forms(tree: Tree, text: str) -> list[str]:
    """A semantic patch for each macro in the text that stands for a difference between branches, and to tidy up."""
    found = []
    for macro, form in branch_forms(tree):
        name, _, rest = macro.partition("(")
        if name in text:
            found.append(f"@@\nexpression {rest.rstrip(')')};\n@@\n- {macro}\n+ {form}\n")
    if found:
        found += [
            "@@\nexpression A;\n@@\n- A && true\n+ A\n",
            "@@\nexpression A;\n@@\n- true && A\n+ A\n",
            "@@\nexpression A;\nidentifier F;\n@@\n- (&A)->F\n+ A.F\n",
            "@@\nexpression A;\nidentifier F, G;\n@@\n- (A->G)->F\n+ A->G->F\n",
            "@@\nidentifier F, I;\n@@\n- (I)->F\n+ I->F\n",
            "@@\nexpression A;\nidentifier I;\n@@\n- A == (I)\n+ A == I\n",
        ]
    return found
