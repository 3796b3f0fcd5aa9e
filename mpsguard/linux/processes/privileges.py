"""Capabilities and system calls that a process gives up for good, with all children it starts afterwards."""

import ctypes
import errno
import os
from collections.abc import Collection, Iterable
from enum import IntEnum
from pathlib import Path
from typing import Final

from mpsguard.linux.processes import procfs


class Capability(IntEnum):
    """By number (capabilities(7), include/uapi/linux/capability.h); those that a process of ours keeps."""

    CHOWN = 0
    DAC_OVERRIDE = 1
    FOWNER = 3
    KILL = 5
    SETGID = 6
    SETUID = 7
    NET_ADMIN = 12
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    SYS_RESOURCE = 24
    SYSLOG = 34


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
_SPECULATION_ALLOWED: Final = 7
_OPTIMIZE: Final = 8
_BINARY_TREE: Final = 2
_ALL_THREADS: Final = 4
_NO_SUCH_CALL: Final = -1

_libc: Final = ctypes.CDLL(None, use_errno=True)


class PrivilegesError(Exception):
    """Privileges could not be given up; the text says which and why."""


def filter_library() -> ctypes.CDLL | None:
    """Load libseccomp, which systemd depends on; None where it is missing."""
    try:
        return ctypes.CDLL(_LIBRARY, use_errno=True)
    except OSError:
        return None


def keep(capabilities: Collection[Capability]) -> None:
    """Give up all capabilities but these; call it while there is one thread. Raises PrivilegesError or OSError."""
    if len(list(Path("/proc/self/task").iterdir())) > 1:
        raise PrivilegesError("capabilities stay: they belong to a thread, and there is more than one")
    # From here on execve(2) gives nothing that this process does not have, not even to root (prctl(2)).
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise PrivilegesError(f"capabilities stay: {os.strerror(ctypes.get_errno())}")
    kept = sum(1 << capability for capability in capabilities)
    own = procfs.status_of(Path("/proc/self/status").read_bytes())
    effective, permitted = (int(own[name][0], 16) for name in ("CapEff", "CapPrm"))
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


def effective(pid: int) -> int:
    """Return the effective capabilities of a process, by bit; OSError if there is none. Never waits.

    Unlike /proc/PID/status it costs the same for each process: a status lists 65,536 groups if the process has them.
    """
    halves = (ctypes.c_uint32 * 6)()
    if _libc.capget((ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, pid), halves):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return halves[0] | halves[3] << 32


def deny(calls: Iterable[str]) -> None:
    """Let these system calls fail with EPERM from now on, in every thread; raises PrivilegesError."""
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
        # Before 5.16 a filter makes the kernel slow a process down against attacks by code that runs in it: here runs
        # no code but ours. An older library has neither of these, and does as well without.
        library.seccomp_attr_set(context, _SPECULATION_ALLOWED, 1)
        library.seccomp_attr_set(context, _OPTIMIZE, _BINARY_TREE)
        for name in calls:
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
