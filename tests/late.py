"""Modules that tests import late: each worker of a parallel run imports all test files, and PyTorch takes seconds."""

import importlib
from importlib.util import find_spec
from typing import Any

import pytest


class Late:
    """A module that is imported when something of it is first used.

    Args:
        name: The module.
        needs: Modules without which the test that uses it is skipped; the module itself if there are none.
    """

    def __init__(self, name: str, *needs: str) -> None:
        self._name = name
        self._needs = needs or (name,)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            # pytest looks for some of these in all that a test file has.
            raise AttributeError(attribute)
        for need in self._needs:
            pytest.importorskip(need, reason=f"{need} is not installed")
        return getattr(importlib.import_module(self._name), attribute)


def require(*modules: str) -> None:
    """Skip the test if one of them is not installed; none is imported: for programs that the test starts."""
    for name in modules:
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
