"""What made a control group, and names that users give theirs."""

import pytest

from mpsguard.cgroup_origin import CgroupOrigin, origin

POD = "01234567-89ab-cdef-0123-456789abcdef"
LOW = POD.replace("-", "_")
ID = "0123456789abcdef" * 4
OTHER = "f" * 64
USER = "/user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("path", "made_by"),
    [
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{LOW}.slice/cri-containerd-{ID}.scope",
            CgroupOrigin(POD, ID),
        ),
        (f"/kubepods.slice/kubepods-pod{LOW}.slice/crio-{ID}.scope/container", CgroupOrigin(POD, ID)),
        (f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{LOW}.slice", CgroupOrigin(POD)),
        (f"/kubepods/besteffort/pod{POD}/{ID}", CgroupOrigin(POD, ID)),
        (f"/kubepods/pod{POD}/{ID}", CgroupOrigin(POD, ID)),
        (f"/system.slice/docker-{ID}.scope", CgroupOrigin(None, ID)),
        (f"/docker/{ID}", CgroupOrigin(None, ID)),
        (f"/ecstasks.slice/ecstasks-1.slice/docker-{ID}.scope", CgroupOrigin(None, ID)),
        (f"/machine.slice/libpod-{ID}.scope/container", CgroupOrigin(None, ID)),
        (f"/machine.slice/machine-libpod_pod_{OTHER}.slice/libpod-{ID}.scope", CgroupOrigin(None, ID)),
        (f"/libpod_parent/libpod-{ID}", CgroupOrigin(None, ID)),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", CgroupOrigin(job=42)),
        ("/system.slice/node1_slurmstepd.scope/job_42/step_batch", CgroupOrigin(job=42)),
        ("/slurm/uid_1001/job_42/step_0", CgroupOrigin(job=42)),
        ("/slurm_node1/uid_1001/job_42", CgroupOrigin(job=42)),
    ],
)
def test_what_a_runtime_made(path: str, made_by: CgroupOrigin) -> None:
    assert origin(path) == made_by


@pytest.mark.parametrize(
    "path",
    [
        f"/kubepods.slice/kubepods-pod{LOW}.slice/cri-containerd-{ID}.scope",
        f"/kubepods/pod{POD}/{ID}",
        f"/system.slice/docker-{ID}.scope",
        f"/docker/{ID}",
        f"/machine.slice/libpod-{ID}.scope",
        f"/libpod_parent/libpod-{ID}",
        f"/user.slice/libpod-{ID}.scope",
        f"/kubepods-pod{LOW}.slice/x",
        "/system.slice/slurmstepd.scope/job_42/step_0",
        "/slurm/uid_1001/job_42",
        "/job_42",
    ],
)
@pytest.mark.parametrize(
    "above",
    [USER, f"{USER}/app.slice", "/user.slice", "/system.slice/delegated.service", "/machine.slice/vm.scope", "/.."],
)
def test_below_what_a_user_may_have_no_name_counts(above: str, path: str) -> None:
    assert origin(above + path) == CgroupOrigin()


@pytest.mark.parametrize(
    ("path", "made_by"),
    [
        (f"/kubepods/pod{POD}/{ID}/kubepods/pod{POD[:-1]}0/{OTHER}", CgroupOrigin(POD, ID)),
        (f"/kubepods/pod{POD}/sub/{OTHER}", CgroupOrigin(POD)),
        (f"/system.slice/docker-{ID}.scope/docker-{OTHER}.scope", CgroupOrigin(None, ID)),
        ("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0/job_7", CgroupOrigin(job=42)),
    ],
)
def test_of_several_names_the_runtimes_counts(path: str, made_by: CgroupOrigin) -> None:
    assert origin(path) == made_by


@pytest.mark.parametrize("path", ["", "/", "/system.slice/slurmd.service", "/system.slice/slurmstepd.scope/job_0"])
def test_other_paths(path: str) -> None:
    assert origin(path) == CgroupOrigin()
