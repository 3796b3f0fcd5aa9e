"""Helper processes are started in one way; the few other starts of processes are of programs that are not ours."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import mpsguard

ROOT: Final = Path(mpsguard.__file__).parent
STARTS: Final = {
    "Popen",
    "run",
    "call",
    "check_call",
    "check_output",
    "create_subprocess_exec",
    "create_subprocess_shell",
    "subprocess_exec",
    "posix_spawn",
    "posix_spawnp",
    "execv",
    "execve",
    "execvp",
    "execvpe",
    "system",
    "popen",
}
MODULES: Final = {"subprocess", "asyncio", "os"}
NOT_STARTS: Final = {("asyncio", "run")}

OTHER_PROGRAMS: Final = {
    "linux/processes/helper_process.py": "the one way",
    "cli/diagnosis/domains.py": "systemctl",
    "guard/dropin/keeper_start.py": "the drop-in becomes the keeper, by the command of a helper",
    "guard/dropin/nvidia_smi.py": "the vendor's program",
    "guard/dropin/device_plugin.py": "mount and umount",
    "guard/incidents/lane_sentinel.py": "runs as the server's user, with -I; its pipes belong to the event loop",
    "guard/lanes/control_process.py": "the vendor's daemon",
    "linux/systemd/handover.py": "the next guard, which gets sockets as systemd passes them",
    "preload/build.py": "the C compiler",
    "vault/supervisor/child_process.py": "the user's program",
}


def starts(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in STARTS:
            of = node.func.value
            if isinstance(of, ast.Name) and of.id in MODULES and (of.id, node.func.attr) not in NOT_STARTS:
                yield node.func.attr


def test_nothing_else_starts_processes() -> None:
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if any(starts(path))}
    assert found == OTHER_PROGRAMS.keys()


def test_no_python_is_started_by_its_path_elsewhere() -> None:
    """A command with sys.executable has the isolation of `module_command`, or -I itself."""
    found = {str(path.relative_to(ROOT)) for path in ROOT.rglob("*.py") if "sys.executable" in path.read_text()}
    assert found == {
        "guard/incidents/lane_sentinel.py",
        "linux/extras.py",  # in the text of an error
        "linux/processes/helper_process.py",
        "linux/processes/reading_child.py",
    }
