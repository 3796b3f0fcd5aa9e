"""No module of mpsguard imports itself by way of others, also not for types alone; no unit in C includes itself."""

import re
from collections import defaultdict
from graphlib import TopologicalSorter
from pathlib import Path

import grimp

from tests.harness.tree import ROOT

C = [path for path in sorted((ROOT / "mpsguard").rglob("*")) if path.suffix in {".c", ".h", ".S"}]


def included(path: Path) -> list[Path]:
    """The headers of the project that a file in C includes."""
    names = re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)
    around = (path.parent, ROOT / "mpsguard" / "preload", ROOT / "mpsguard")
    found = [next((base / name for base in around if (base / name).is_file()), None) for name in names]
    assert None not in found, f"{path}: includes what is not there: {names}"
    return [header.resolve() for header in found if header is not None]


def test_there_is_no_circle() -> None:
    graph = grimp.build_graph("mpsguard", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(list(TopologicalSorter(imports).static_order())) == len(graph.modules)


def test_there_is_no_circle_in_c() -> None:
    # NAME.c, NAME.S and NAME.h are one unit: what it calls of others it has from their headers.
    needs: dict[Path, set[Path]] = defaultdict(set)
    for path in C:
        unit = path.with_suffix("")
        needs[unit] |= {header.with_suffix("") for header in included(path)} - {unit}
    assert sum(map(len, needs.values())) > len(C)
    assert list(TopologicalSorter(needs).static_order())
