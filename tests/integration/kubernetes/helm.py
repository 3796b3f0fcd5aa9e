"""The real helm, where scripts/fetch-kubernetes-tools has put it or PATH leads to one."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.harness.guard_process import REPOSITORY

KUBERNETES = REPOSITORY / "examples" / "kubernetes"
CHART = KUBERNETES / "chart"
_CACHE = REPOSITORY / ".cache" / "kubernetes-tools"
HELM = shutil.which("helm") or shutil.which(_CACHE / "helm")


def _why_not() -> str:
    note = _CACHE / "unavailable"
    said = note.read_text().strip() if note.exists() else "scripts/fetch-kubernetes-tools gets it"
    return f"no helm: {said}"


needs_helm = pytest.mark.skipif(HELM is None, reason=_why_not())


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    assert HELM is not None
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60, check=False)


def rendered(*settings: str) -> list[dict[str, Any]]:
    """Return the objects of the chart with some values set."""
    options = [word for each in settings for word in ("--set", each)]
    done = helm("template", "mpsguard", CHART, "--namespace", "mpsguard", *options)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each is not None]
