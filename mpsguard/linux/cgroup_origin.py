"""The Slurm job, pod and container that made a control group, read off its path at the levels that no user can make.

A user makes groups with any name below a group that was delegated to it, such as its `user@.service` in `user.slice`.
systemd delegates services and scopes, never slices, and only root makes groups at the root. So a name counts after a
chain of slices from the root that is not the users' one, directly in the service of a container runtime that runs as
root, or where a kubelet, container runtime or slurmd without systemd puts it at the root; of what lies below it nothing
counts. A path that begins with `/..` is outside of the guard's own cgroup namespace: its upper levels are not known, so
nothing counts.

A runtime with the cgroupfs driver that is given a slice, as by a kubelet with the systemd driver, makes one group of
that name and its own: ``kubepods-podUID.slice:cri-containerd:ID``. runc puts it below the runtime's service, or beside
it with cgroup v2.
"""

import re
from typing import Final, NamedTuple

_SLICES: Final = r"(?:/(?!user\.slice/)[^/]+\.slice)"
_RUNTIME: Final = (
    r"(?:containerd|docker|cri-docker|crio|kubelet|k3s|k3s-agent|rke2-server|rke2-agent|k0scontroller|k0sworker|"
    r"snap\.docker\.dockerd|snap\.microk8s\.daemon-(?:containerd|kubelite)|snap\.k8s\.(?:containerd|kubelet))\.service"
)
"""Services of runtimes and kubelets, which run as root; those of users without root are in `user.slice`."""
_TOP: Final = rf"(?:{_SLICES}+/{_RUNTIME})?{_SLICES}*"
_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})"
"""The systemd driver of the kubelet writes underscores for dashes; a pod from a file of the kubelet has 32 digits."""
_ID: Final = r"([0-9a-f]{64})"
_END: Final = r"(?=/|$)"
_IN_POD: Final = rf"(?:/(?:[a-z-]+-)?{_ID}(?:\.scope)?)?"
_POD_SLICE: Final = rf"/(?:[^/:]+-)?kubepods-(?:(?:burstable|besteffort)-)?pod{_UID}\.slice"

_PODS: Final = (
    # The systemd driver, also below a cgroupRoot of the kubelet; the other one, also below that of kind.
    re.compile(rf"{_TOP}{_POD_SLICE}{_IN_POD}{_END}"),
    re.compile(rf"(?:/kubelet)?/kubepods(?:\.slice)?(?:/burstable|/besteffort)?/pod{_UID}(?:\.slice)?{_IN_POD}{_END}"),
    re.compile(rf"{_TOP}{_POD_SLICE}:[a-z-]+:{_ID}{_END}"),
)
_CONTAINERS: Final = (
    # Docker, Podman (in a pod of its own, too) and nerdctl with systemd, and without; Amazon ECS.
    re.compile(rf"{_SLICES}+/(?:docker|libpod|nerdctl|crio|cri-containerd)-{_ID}\.scope{_END}"),
    re.compile(rf"{_TOP}/[^/:]+\.slice:(?:docker|libpod|nerdctl|crio|cri-containerd):{_ID}{_END}"),
    re.compile(rf"/(?:docker|default|k8s\.io|ecs(?:/[^/]+){{1,2}})/{_ID}{_END}"),
    re.compile(rf"/libpod_parent/(?:[0-9a-f]{{64}}/)?libpod-{_ID}{_END}"),
)
_JOBS: Final = (
    # cgroup v2, with several slurmd on a machine and in a slice of its own (CgroupSlice), too; cgroup v1.
    re.compile(rf"{_SLICES}+/(?:[^/]+_)?slurmstepd\.scope/job_([1-9][0-9]*){_END}"),
    re.compile(rf"/slurm(?:_[^/]+)?/uid_[0-9]+/job_([1-9][0-9]*){_END}"),
)


class CgroupOrigin(NamedTuple):
    """What made a control group."""

    pod: str | None = None
    """UID of a Kubernetes pod; of one that the kubelet has from a file, the 32 digits that the kubelet gave it."""
    container: str | None = None
    """Id of a container, 64 digits."""
    job: int | None = None
    """Number of a Slurm job."""


def origin(cgroup: str) -> CgroupOrigin:
    """Return what made the control group with this path."""
    pod = _first(_PODS, cgroup)
    if pod is not None:
        return CgroupOrigin(pod[1].replace("_", "-"), pod[2])
    found, job = _first(_CONTAINERS, cgroup), _first(_JOBS, cgroup)
    return CgroupOrigin(None, found[1] if found else None, int(job[1]) if job else None)


def _first(patterns: tuple[re.Pattern[str], ...], cgroup: str) -> re.Match[str] | None:
    return next((match for each in patterns if (match := each.match(cgroup)) is not None), None)
