"""docs/reference/events.md names every event, with its MESSAGE_ID."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from mpsguard.control_api import event_stream
from mpsguard.linux.systemd.journald import message_id
from tests.unit.test_house import ROOT

PAGE = (ROOT / "docs" / "reference" / "events.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `([a-z_]+)` \| `([0-9a-f]{32})` \|", PAGE, re.MULTILINE))


def published() -> Iterator[str]:
    """The kinds that the code publishes by a name of its own."""
    for path in (ROOT / "mpsguard").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "publish":
                # Two of them where it depends: "a" if ... else "b".
                for each in ast.walk(node.args[0]):
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield each.value


def test_every_event_has_a_row() -> None:
    grave = event_stream._GRAVE
    assert {*published(), *grave} - set(ROWS) == set()


def test_every_row_has_the_id_that_is_sent() -> None:
    assert len(ROWS) > 50
    assert {kind: message_id(kind) for kind in ROWS} == ROWS
