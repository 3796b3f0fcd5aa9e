"""No module of mpsguard imports itself by way of others, also not for types alone."""

from graphlib import TopologicalSorter

import grimp


def test_there_is_no_circle() -> None:
    graph = grimp.build_graph("mpsguard", cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(list(TopologicalSorter(imports).static_order())) == len(graph.modules)
