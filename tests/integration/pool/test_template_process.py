"""A template and its workers without a pool around them: pids and descriptors, once one of them has ended."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.pool.template_process import TemplateProcess
from tests.integration.pool.test_template import IMPORTED
from tests.integration.vault.running import wait_for

PREPARE = "tests.integration.pool.prepared:prepare"


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TemplateProcess]:
    monkeypatch.setenv("POOL_TEST", str(tmp_path))
    found = TemplateProcess(PREPARE, [IMPORTED], tmp_path / "pool.sock")
    yield found
    if found.lives:
        ended(found)
        found.reap()


def ended(template: TemplateProcess) -> None:
    template.process.kill()
    wait_for("the template's end", lambda: not template.lives)


def test_a_template_that_has_ended_keeps_no_pid(template: TemplateProcess) -> None:
    number = template.process.pidfd
    ended(template)
    template.reap()
    # Another descriptor, of which nothing is to be read, gets its number.
    pipe = os.pipe()
    copy = fcntl.fcntl(pipe[0], fcntl.F_DUPFD, number)
    try:
        assert number in {*pipe, copy}
        assert not template.lives
    finally:
        for fd in (*pipe, copy):
            os.close(fd)
