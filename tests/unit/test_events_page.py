"""docs/reference/events.md names every event, with its MESSAGE_ID."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mpsguard.guard.control_api import event_stream
from mpsguard.linux.systemd.journald import message_id
from tests.harness.tree import ROOT

PAGE = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_]+)` \| `([0-9a-f]{32})` \|", PAGE, re.MULTILINE))


_PUBLISH = {"publish", "notice", "_notice"}
"""Functions that take the kind of an event first. The domain publishes what lanes, lifelines and the journal notice."""


def parsed() -> Iterator[ast.Module]:
    """The code, but for the event stream's own lists of kinds."""
    for path in (ROOT / "mpsguard").rglob("*.py"):
        if path.name != "event_stream.py":
            yield ast.parse(path.read_text(encoding="utf-8"))


def constants(node: ast.AST) -> set[str]:
    """The strings in a node; two of them where it depends: "a" if ... else "b"."""
    return {each.value for each in ast.walk(node) if isinstance(each, ast.Constant) and isinstance(each.value, str)}


def published() -> set[str]:
    """The kinds that the code publishes by a name of its own."""
    found = {event_stream.DEFECT, event_stream.LEFT_OUT}
    for call in (node for module in parsed() for node in ast.walk(module) if isinstance(node, ast.Call) and node.args):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        if name in _PUBLISH:
            found |= constants(call.args[0])
    return found


def test_every_event_has_a_row() -> None:
    assert published() - set(ROWS) == set()


def test_every_row_is_an_event_that_the_code_names() -> None:
    """Anywhere: some are chosen before they are published."""
    assert set(ROWS) - set().union(*map(constants, parsed())) - published() == set()


def test_every_grave_event_is_published() -> None:
    assert event_stream._GRAVE - set(ROWS) == set()


def test_every_row_has_the_id_that_is_sent() -> None:
    assert len(ROWS) > 50
    assert {kind: message_id(kind) for kind in ROWS} == ROWS
