"""How much memory this process could take up before the kernel kills for it: of the machine and its control groups."""

from pathlib import Path
from typing import Final, NamedTuple

from mpsguard.linux.processes import procfs

_CGROUPS: Final = Path("/sys/fs/cgroup")
_KIB: Final = 1 << 10


class _Files(NamedTuple):
    """Names of a control group's files, by the version of its hierarchy (Documentation/admin-guide of Linux)."""

    most: str
    taken: str
    given_back: str
    """In memory.stat: what the kernel gives back first."""


_V1: Final = _Files("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_V2: Final = _Files("memory.max", "memory.current", "inactive_file")


def room(cgroups: Path = _CGROUPS, proc: Path = Path("/proc")) -> int | None:
    """Return bytes, page cache that can be given back counted in; None if the kernel does not tell.

    Args:
        cgroups: where the hierarchies are mounted.
        proc: where proc(5) is.
    """
    found = [_available(proc)]
    try:
        paths = procfs.cgroup_paths((proc / "self/cgroup").read_bytes())
    except OSError:
        paths = {}
    for controllers, path in paths.items():
        inside = Path(path.lstrip("/"))
        if not controllers:
            # The unified hierarchy, alone or beside those of version 1.
            found += [
                _left(place, _V2) for root in (cgroups, cgroups / "unified") for place in _ancestors(root, inside)
            ]
        elif "memory" in controllers.split(","):
            found += [_left(place, _V1) for place in _ancestors(cgroups / "memory", inside)]
    return min((each for each in found if each is not None), default=None)


def _ancestors(root: Path, inside: Path) -> list[Path]:
    return [root / inside, *(root / each for each in inside.parents)]


def _left(group: Path, files: _Files) -> int | None:
    try:
        # "max" in version 2: no limit.
        most, taken = (int((group / name).read_text()) for name in (files.most, files.taken))
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return most - taken + int(stat.get(files.given_back, 0))


def _available(proc: Path) -> int | None:
    try:
        for line in (proc / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * _KIB
    except (OSError, ValueError):
        pass
    return None
