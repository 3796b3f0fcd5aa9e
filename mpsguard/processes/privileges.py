"""What the guard gives up before it serves anybody: capabilities, and system calls that it never makes.

Both bind every child started afterwards. Neither can be had back; the launcher, started before, keeps its own.
"""

import ctypes
import errno
import os
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path
from typing import Final

import msgspec


class Capability(IntEnum):
    """Capabilities the guard keeps, by number (capabilities(7), include/uapi/linux/capability.h)."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    FOWNER = 3
    KILL = 5
    SETGID = 6
    SETUID = 7
    NET_ADMIN = 12
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYSLOG = 34


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
"""System calls that fail with EPERM, by group; docs/security.md has the reason for each."""

_LIBRARY: Final = "libseccomp.so.2"

# include/uapi/linux/prctl.h, include/uapi/linux/capability.h
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_CAPABILITY_VERSION_3: Final = 0x20080522
_SETPCAP: Final = 8

# seccomp.h of libseccomp
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_NO_NEW_PRIVS: Final = 3
_ALL_THREADS: Final = 4
_NO_SUCH_CALL: Final = -1

_libc: Final = ctypes.CDLL(None, use_errno=True)


class PrivilegesError(Exception):
    """Privileges could not be given up."""


class Given(msgspec.Struct, frozen=True):
    """What was given up."""

    capabilities: bool
    filter: bool
    less: tuple[str, ...] = ()
    """What was not, and why."""


def driver_is_ready(root: Path = Path("/")) -> bool:
    """Whether the driver is loaded and every GPU has its device node.

    If not, the vendor's libraries in the guard run nvidia-modprobe, which needs what would be given up.
    """
    try:
        gpus = sum(1 for _ in (root / "proc/driver/nvidia/gpus").iterdir())
        nodes = [path.name.removeprefix("nvidia") for path in (root / "dev").glob("nvidia*")]
    except OSError:
        return False
    return gpus > 0 and "ctl" in nodes and sum(name.isdigit() for name in nodes) >= gpus


def give_up() -> Given:
    """Give up what the guard does not need; call this while there is one thread, before anything is served."""
    failures = [_failure(step) for step in (_drop_capabilities, _load_filter)]
    return Given(capabilities=failures[0] is None, filter=failures[1] is None, less=tuple(filter(None, failures)))


def filter_library() -> ctypes.CDLL | None:
    """Load libseccomp, which systemd depends on; None where it is missing."""
    try:
        return ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        return None


def _failure(step: Callable[[], None]) -> str | None:
    try:
        step()
    except PrivilegesError as error:
        return str(error)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return None


def _load_filter() -> None:
    library = filter_library()
    if library is None:
        raise PrivilegesError(f"no filter of system calls: no {_LIBRARY}")
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_rule_add_array.argtypes = (
        ctypes.c_void_p,
        ctypes.c_uint32,
        ctypes.c_int,
        ctypes.c_uint,
        ctypes.c_void_p,
    )
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_load.argtypes = (ctypes.c_void_p,)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_release.restype = None
    context = library.seccomp_init(_ALLOW)
    if not context:
        raise PrivilegesError("no filter of system calls: seccomp_init failed")
    try:
        _checked(library.seccomp_attr_set(context, _NO_NEW_PRIVS, 1))
        _checked(library.seccomp_attr_set(context, _ALL_THREADS, 1))
        for name in (name for group in DENIED.values() for name in group):
            number = library.seccomp_syscall_resolve_name(name.encode())
            # An older library does not know every call; what it knows is denied.
            if number != _NO_SUCH_CALL:
                _checked(library.seccomp_rule_add_array(context, _ERRNO | errno.EPERM, number, 0, None))
        _checked(library.seccomp_load(context))
    finally:
        library.seccomp_release(context)


def _checked(result: int) -> None:
    if result < 0:
        raise PrivilegesError(f"no filter of system calls: {os.strerror(-result)}")


def _drop_capabilities() -> None:
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise PrivilegesError("capabilities stay: they belong to a thread, and there is more than one")
    # From here on execve(2) gives nothing that this process does not have, not even to root (prctl(2)).
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise PrivilegesError(f"capabilities stay: {os.strerror(ctypes.get_errno())}")
    kept = sum(1 << capability for capability in Capability)
    effective, permitted = (_own(name) for name in ("CapEff", "CapPrm"))
    if effective & 1 << _SETPCAP:
        for number in range(int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1):
            if not kept & 1 << number and _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0):
                raise PrivilegesError(f"capability {number} stays: {os.strerror(ctypes.get_errno())}")
    if _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0):
        raise PrivilegesError(f"ambient capabilities stay: {os.strerror(ctypes.get_errno())}")
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    halves = [half >> shift & 0xFFFFFFFF for shift in (0, 32) for half in (effective & kept, permitted & kept, 0)]
    if _libc.capset(header, (ctypes.c_uint32 * 6)(*halves)):
        raise PrivilegesError(f"capabilities stay: {os.strerror(ctypes.get_errno())}")


def _own(name: str) -> int:
    """One of this process' capability sets, as /proc/self/status has it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith(f"{name}:"))
