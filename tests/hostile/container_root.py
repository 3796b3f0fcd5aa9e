"""Processes with uid 0 that are root of a container alone: what separates them from root, one thing at a time."""

import secrets
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from mpsguard.guard.pods import Pod, PodContainer
from tests.integration.kubernetes.pod_cgroup import pod_cgroup

Prefix = tuple[str, ...]
"""A command that runs the command after it."""

_CAPABILITIES: Final = "+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+sys_chroot"
"""Of a container that asks for no others (Docker, containerd, CRI-O), as far as they matter here."""
_LIMITED: Final = ("setpriv", f"--bounding-set=-all,{_CAPABILITIES}", "--inh-caps=-all")
_PIDS: Final = ("unshare", "--pid", "--mount", "--fork", "--kill-child")
_USERS: Final = ("unshare", "--user", "--map-root-user")


@contextmanager
def in_pod() -> Iterator[Prefix]:
    """Yield what runs a command in the control group of a new pod, with all capabilities.

    The pod is removed at the end: whatever runs there has to be ended before.
    """
    container = PodContainer(secrets.token_hex(32), "main")
    pod = Pod(str(uuid.uuid4()), "team-a", "work", (container,))
    with pod_cgroup(pod, container) as cgroup:
        yield ("sh", "-c", f'echo $$ > "{cgroup}/cgroup.procs" && exec "$@"', "sh")


@contextmanager
def in_container() -> Iterator[Prefix]:
    """Yield what runs a command as root of a container in a pod, as Kubernetes does without a user namespace."""
    with in_pod() as pod:
        yield (*pod, *_PIDS, *_LIMITED)


KINDS: Final[dict[str, Callable[[], AbstractContextManager[Prefix]]]] = {
    "container": in_container,
    "capabilities": lambda: nullcontext(_LIMITED),
    "pid namespace": lambda: nullcontext(_PIDS),
    "user namespace": lambda: nullcontext(_USERS),
    "control group": in_pod,
}
"""By what separates it; "container" is all of a container at once."""
