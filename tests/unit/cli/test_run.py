"""A defect of `mpsguard run` itself: an exit code that no program uses, and the traceback for its report."""

from typing import NoReturn

import pytest

from mpsguard.cli import run
from mpsguard.vault.supervisor.supervisor import Supervisor


def test_a_defect_has_the_exit_code_of_our_own_mistakes_and_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    def start(_: object) -> NoReturn:
        raise ZeroDivisionError

    async def nothing(_: object) -> NoReturn:
        raise AssertionError("no process was started")

    with pytest.raises(SystemExit) as ended:
        run._supervise(Supervisor(start, nothing, grace=None, foreground=True), ("true",))
    assert ended.value.code == run.OURS
    assert __file__ in capsys.readouterr().err
