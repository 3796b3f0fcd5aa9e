"""The machine: rights, namespaces, what its kernel and libraries have."""

from pathlib import Path
from typing import Final

from mpsguard.cli.diagnosis.finding import Finding, note, ok
from mpsguard.linux.processes import exec_watch, privileges
from mpsguard.linux.sockets import seqpacket

_FIRST_PID_NAMESPACE: Final = "pid:[4026531836]"
"""PROC_PID_INIT_INO in the kernel's include/linux/proc_ns.h: the number is part of its interface."""


def rights() -> Finding:
    """Whether a guard of this user can serve others."""
    subject = "privileges"
    if seqpacket.may_impersonate():
        return ok(subject, "a guard of this user can introduce clients as themselves")
    return note(
        subject,
        "a guard of this user serves only its own user's clients (CAP_SYS_ADMIN, CAP_SETUID, CAP_SETGID are missing)",
        "start it as root, as mpsguard.service does",
    )


def pid_namespace(namespace: Path = Path("/proc/self/ns/pid")) -> Finding:
    """Whether processes of all of the machine can be told apart here."""
    subject = "pid namespace"
    if str(namespace.readlink()) == _FIRST_PID_NAMESPACE:
        return ok(subject, "the machine's own: clients of every container are seen with their pids")
    return note(
        subject,
        "one of a container: clients outside it, such as other pods, have pid 0 here, and a guard here refuses them",
        "run the guard on the host, or with hostPID: true (Kubernetes), --pid=host (Docker, Podman)",
    )


def descriptors() -> Finding:
    """Whether peers can send descriptors to the public sockets."""
    subject = "strangers' descriptors"
    if seqpacket.kernel_refuses_descriptors():
        return ok(subject, "the kernel refuses them at the public sockets (SO_PASSRIGHTS)")
    return note(
        subject,
        "the kernel lets peers send them (SO_PASSRIGHTS came with Linux 6.16): closed on threads of each user's own",
        "Linux 6.16 or later",
    )


def system_calls() -> Finding:
    """Whether a guard can deny itself the system calls that it does not need."""
    subject = "system calls"
    if privileges.filter_library() is None:
        missing = "no libseccomp.so.2: a guard runs without a filter of system calls"
        return note(subject, missing, "install libseccomp2 (Debian, Ubuntu) or libseccomp (RHEL)")
    return ok(subject, "a guard that finds the driver loaded denies itself those it never makes")


def execs() -> Finding:
    """How soon the guard sees that a client has executed another program."""
    subject = "process events"
    try:
        exec_watch.exec_events().close()
    except OSError as error:
        late = f"a client's exec is seen within {exec_watch.LOOK:g} s: process events: {error}"
        return note(subject, late, "a kernel with CONFIG_PROC_EVENTS, in the machine's own network namespace, as root")
    return ok(subject, "the kernel tells of a client's exec at once")
