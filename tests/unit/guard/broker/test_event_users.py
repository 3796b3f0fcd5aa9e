"""Events of the broker that name a process count for the user that can cause them as often as it likes."""

import ast
from pathlib import Path

from mpsguard.guard import broker

BROKER = Path(broker.__file__).parent


def test_each_event_about_a_process_has_a_user() -> None:
    """Without one it has no share of the log: 20 refusals, or 200 clients without their class, a second for ever."""
    published = {
        f"{path.name}:{call.lineno}": {each.arg for each in call.keywords}
        for path in sorted(BROKER.glob("*.py"))
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "publish"
    }
    assert published
    assert [at for at, names in published.items() if "user" not in names and names & {"pid", "uid", None}] == []
