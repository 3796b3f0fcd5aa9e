"""A copier that cannot be started leaves nothing behind."""

import os
import tempfile
from pathlib import Path

import pytest

from mpsguard.images.checkpoints.copier_process import CopierProcess
from mpsguard.images.checkpoints.messages import Setup
from tests.harness.descriptors_left import descriptors_left
from tests.harness.open_descriptors import open_descriptors, opened_since


def test_nothing_is_left_of_a_copier_for_which_there_is_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    setup = Setup("s", os.geteuid(), str(tmp_path / "vault"), str(tmp_path / "store"), None, 0, "program")
    before, failed = open_descriptors(), 0
    while True:
        with descriptors_left(failed):
            try:
                copier = CopierProcess(setup, None)
            except OSError:
                copier = None
        if copier is not None:
            break
        failed += 1
        assert opened_since(before) == [], f"{failed} left"
        assert not list(tmp_path.iterdir()), f"{failed} left"
    assert failed > 3
    copier.kill()
    assert copier.reap(30)
    assert opened_since(before) == []
    assert not list(tmp_path.iterdir())


def test_a_store_at_a_path_that_is_not_utf_8_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    before = open_descriptors()
    with pytest.raises(OSError, match="UTF-8"):
        CopierProcess(Setup("s", os.geteuid(), str(tmp_path / "vault"), store, None, 0, "program"), None)
    assert opened_since(before) == []
    assert not list(tmp_path.iterdir())
