"""The Slurm job, pod and container that made a control group, read off its path at the levels that no user can make.

A user makes groups with any name below a group that was delegated to it, such as its `user@.service` in `user.slice`.
systemd delegates services and scopes, never slices, and only root makes groups at the root. So a name counts after a
chain of slices from the root that is not the users' one, or where a kubelet, container runtime or slurmd without
systemd puts it at the root; of what lies below it nothing counts. A path that begins with `/..` is outside of the
guard's own cgroup namespace: its upper levels are not known, so nothing counts.
"""

import re
from typing import Final, NamedTuple

_SLICES: Final = r"(?:/(?!user\.slice/)[^/]+\.slice)"
_UID: Final = r"([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})"
"""The systemd driver of the kubelet writes underscores for dashes."""
_ID: Final = r"([0-9a-f]{64})"
_END: Final = r"(?=/|$)"

_PODS: Final = (
    # The systemd driver, also below a cgroupRoot of the kubelet; the other one.
    re.compile(rf"{_SLICES}*/(?:[^/]+-)?kubepods-(?:(?:burstable|besteffort)-)?pod{_UID}\.slice{_END}"),
    re.compile(rf"/kubepods(?:\.slice)?(?:/burstable|/besteffort)?/pod{_UID}(?:\.slice)?{_END}"),
)
_IN_POD: Final = re.compile(rf"/(?:[a-z-]+-)?{_ID}(?:\.scope)?{_END}")
_CONTAINERS: Final = (
    # Docker, Podman (in a pod of its own, too) and nerdctl with systemd, and without.
    re.compile(rf"{_SLICES}+/(?:docker|libpod|nerdctl|crio|cri-containerd)-{_ID}\.scope{_END}"),
    re.compile(rf"/(?:docker|default)/{_ID}{_END}"),
    re.compile(rf"/libpod_parent/(?:[0-9a-f]{{64}}/)?libpod-{_ID}{_END}"),
)
_JOBS: Final = (
    # cgroup v2, with several slurmd on a machine too; cgroup v1.
    re.compile(rf"/system\.slice/(?:[^/]+_)?slurmstepd\.scope/job_([1-9][0-9]*){_END}"),
    re.compile(rf"/slurm(?:_[^/]+)?/uid_[0-9]+/job_([1-9][0-9]*){_END}"),
)


class CgroupOrigin(NamedTuple):
    """What made a control group."""

    pod: str | None = None
    """UID of a Kubernetes pod."""
    container: str | None = None
    """Id of a container, 64 digits."""
    job: int | None = None
    """Number of a Slurm job."""


def origin(cgroup: str) -> CgroupOrigin:
    """Return what made the control group with this path."""
    pod = _first(_PODS, cgroup)
    if pod is not None:
        container = _IN_POD.match(cgroup, pod.end())
        return CgroupOrigin(pod[1].replace("_", "-"), container[1] if container else None)
    found, job = _first(_CONTAINERS, cgroup), _first(_JOBS, cgroup)
    return CgroupOrigin(None, found[1] if found else None, int(job[1]) if job else None)


def _first(patterns: tuple[re.Pattern[str], ...], cgroup: str) -> re.Match[str] | None:
    return next((match for each in patterns if (match := each.match(cgroup)) is not None), None)
