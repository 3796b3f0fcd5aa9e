"""What is left of memory, from files as the kernel writes them."""

from pathlib import Path

from mpsguard.linux.memory_room import room

MEMINFO = "MemTotal:  64 kB\nMemFree:  1 kB\nMemAvailable:  32 kB\n"


def machine(tmp_path: Path, cgroup: str, **files: str) -> tuple[Path, Path]:
    proc, groups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text(MEMINFO)
    (proc / "self/cgroup").write_text(cgroup)
    groups.mkdir()
    for name, content in files.items():
        path = groups / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return groups, proc


def test_without_limits_it_is_what_the_machine_has(tmp_path: Path) -> None:
    files = {"a/memory.max": "max\n", "a/memory.current": "7\n", "a/memory.stat": "inactive_file 0\n"}
    assert room(*machine(tmp_path, "0::/a\n", **files)) == 32 << 10


def test_the_narrowest_group_above_counts_and_page_cache_is_room(tmp_path: Path) -> None:
    files = {
        "a/memory.max": "9000\n",
        "a/memory.current": "5000\n",
        "a/memory.stat": "anon 4000\ninactive_file 500\n",
        "a/b/memory.max": "8000\n",
        "a/b/memory.current": "1000\n",
        "a/b/memory.stat": "anon 1000\ninactive_file 0\n",
    }
    assert room(*machine(tmp_path, "0::/a/b\n", **files)) == 4500


def test_hierarchies_of_version_1(tmp_path: Path) -> None:
    files = {
        "memory/a/memory.limit_in_bytes": "6000\n",
        "memory/a/memory.usage_in_bytes": "5000\n",
        "memory/a/memory.stat": "total_inactive_file 100\n",
        "unified/b/memory.max": "max\n",
    }
    assert room(*machine(tmp_path, "4:cpu,cpuacct:/z\n3:memory:/a\n0::/b\n", **files)) == 1100


def test_a_kernel_that_tells_nothing(tmp_path: Path) -> None:
    assert room(tmp_path / "none", tmp_path / "nothing") is None


def test_of_this_machine() -> None:
    found = room()
    assert found is not None
    assert found > 1 << 20
