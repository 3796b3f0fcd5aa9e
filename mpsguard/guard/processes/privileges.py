"""Privileges that the guard drops before it serves clients: capabilities, and system calls that it never makes.

Both restrictions are permanent and apply to every child started afterwards. The launcher, started before, keeps its
privileges.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from mpsguard.linux.processes import privileges
from mpsguard.linux.processes.privileges import Capability, PrivilegesError

KEPT: Final = frozenset(Capability)
"""The capabilities that the guard keeps: all of `Capability`; docs/concepts/security.md has the reason for each."""

DENIED: Final = {
    "kernel modules": ("init_module", "finit_module", "delete_module"),
    "another kernel": ("kexec_load", "kexec_file_load", "reboot"),
    "mounts": (
        "mount",
        "umount2",
        "pivot_root",
        "chroot",
        "move_mount",
        "open_tree",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "mount_setattr",
    ),
    "namespaces": ("setns", "unshare"),
    "programs in the kernel": ("bpf", "perf_event_open", "userfaultfd"),
    "calls past this filter": ("io_uring_setup", "io_uring_enter", "io_uring_register"),
    "other processes' memory": ("ptrace", "process_vm_readv", "process_vm_writev"),
    "keys": ("add_key", "keyctl", "request_key"),
    "clocks": ("settimeofday", "clock_settime", "clock_adjtime", "adjtimex"),
    "swap, quotas, accounting": ("swapon", "swapoff", "quotactl", "quotactl_fd", "acct"),
    "ports and files by handle": ("iopl", "ioperm", "open_by_handle_at"),
}
"""System calls that fail with EPERM, by group; docs/concepts/security.md has the reason for each."""


class DroppedPrivileges(msgspec.Struct, frozen=True):
    """The privileges that were dropped."""

    capabilities: bool
    filter: bool
    less: tuple[str, ...] = ()
    """What could not be dropped, and why."""


def driver_is_ready(root: Path = Path("/")) -> bool:
    """Return whether the driver is loaded and every GPU has its device node.

    If not, the vendor's libraries in the guard run nvidia-modprobe, which needs the privileges that would be dropped.
    """
    try:
        gpus = sum(1 for _ in (root / "proc/driver/nvidia/gpus").iterdir())
        nodes = [path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia*")]
    except OSError:
        return False
    return gpus > 0 and "ctl" in nodes and sum(name.isdigit() for name in nodes) >= gpus


def give_up() -> DroppedPrivileges:
    """Drop the privileges that the guard does not need; call this in a single-threaded process, before serving."""
    failures = [_failure(step) for step in (_keep, _deny)]
    return DroppedPrivileges(
        capabilities=failures[0] is None, filter=failures[1] is None, less=tuple(filter(None, failures))
    )


def _failure(step: Callable[[], None]) -> str | None:
    try:
        step()
    except PrivilegesError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _keep() -> None:
    privileges.keep(KEPT)


def _deny() -> None:
    privileges.deny(name for group in DENIED.values() for name in group)
