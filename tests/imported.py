"""What importing a module brings with it."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def modules_after(imported: str) -> list[str]:
    """The modules that a fresh interpreter has when it has imported this one, sorted."""
    listed = f"import sys, {imported}; print(*sorted(sys.modules))"
    said = subprocess.run([sys.executable, "-c", listed], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    modules = said.split()
    assert imported in modules
    return modules
