"""What made a control group, and names that users give theirs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.linux.cgroup_origin import CgroupOrigin, origin
from mpsguard.linux.processes.procfs import cgroup_of

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


def id_of(begin: str) -> str:
    """Return an id of 64 digits."""
    return begin.ljust(64, "0")


# Paths as people have reported them; an id that the report cuts is filled up.
REPORTED = [
    (
        "kubernetes/kubernetes #106514: systemd kubelet, cgroupfs containerd, a pod of the kubelet's own",
        (
            "/system.slice/containerd.service/kubepods-burstable-pod36b6d6be73b1065af369b3985edafa09.slice:cri-containerd:"
            "79fedb3bd23ca77c9d9ccb41909038316f713df22b54b7d942b71d3812e7c74e"
        ),
        CgroupOrigin(
            "36b6d6be73b1065af369b3985edafa09", "79fedb3bd23ca77c9d9ccb41909038316f713df22b54b7d942b71d3812e7c74e"
        ),
    ),
    (
        "containerd/containerd #5226: the same, a pod of the API server's",
        (
            "/system.slice/containerd.service/kubepods-burstable-pod7a875b5c_4d3c_4345_ac0f_5c847d8d7129.slice:cri-containerd:"
            "ee05f876e981d258209f91f25f139f7abc13a0246a5f343298572602fea8c7bb"
        ),
        CgroupOrigin(
            "7a875b5c-4d3c-4345-ac0f-5c847d8d7129", "ee05f876e981d258209f91f25f139f7abc13a0246a5f343298572602fea8c7bb"
        ),
    ),
    (
        "cri-o/cri-o #842: both systemd, Docker",
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod90d81341_92de_11e7_8cf2_507b9d4141fa.slice/docker-"
            "2227daf62df6694645fee5df53c1f91271546a9560e8600a525690ae252b7f63.scope"
        ),
        CgroupOrigin(
            "90d81341-92de-11e7-8cf2-507b9d4141fa", "2227daf62df6694645fee5df53c1f91271546a9560e8600a525690ae252b7f63"
        ),
    ),
    (
        "cri-o/cri-o #842: both cgroupfs, Docker",
        (
            "/kubepods/burstable/pod941dc160-92df-11e7-b27e-507b9d4141fa/"
            "2b4d747eae5ed34775c069d913c81833b67a0148e731a36535c9f3b97ebfb87f"
        ),
        CgroupOrigin(
            "941dc160-92df-11e7-b27e-507b9d4141fa", "2b4d747eae5ed34775c069d913c81833b67a0148e731a36535c9f3b97ebfb87f"
        ),
    ),
    (
        "kubernetes/kubernetes #36807, Mirantis/cri-dockerd #101: systemd kubelet, cgroupfs Docker",
        (
            "/system.slice/docker.service/kubepods.slice/kubepods-besteffort.slice/"
            "kubepods-besteffort-pod0d33f94b_ab1a_11e6_9e1a_68f7281d8004.slice/"
            "0c34bcd7d02f321d0df7aa6ea703285b02abebc9096c5128c14091fc43ea1f3b"
        ),
        CgroupOrigin(
            "0d33f94b-ab1a-11e6-9e1a-68f7281d8004", "0c34bcd7d02f321d0df7aa6ea703285b02abebc9096c5128c14091fc43ea1f3b"
        ),
    ),
    (
        "kubernetes/minikube #11280: a node in a container; the container is all that root alone has named",
        (
            "/docker/d6701ec289c56e4391acb11d07474b3139466857a305490575508a8b7a9fcf22/kubepods.slice/"
            "kubepods-besteffort.slice/kubepods-besteffort-pod2ca4a155_3599_498d_bb9d_4446693fa3ea.slice/"
            "crio-0ba8ac17e4e7a31fb82279503552fe94e64bab4745bf6fd2ff231e7c8ca8bed0.scope"
        ),
        CgroupOrigin(None, "d6701ec289c56e4391acb11d07474b3139466857a305490575508a8b7a9fcf22"),
    ),
    (
        "dajudge/kindcontainer #341: k3s",
        (
            "/kubepods/besteffort/pod85af8291-287b-44b0-897e-c4e6a9c8512b/"
            "19e5ed27c5ab22ca59b11ebe481145f03325b330ab94dc2b55b7cec3c5cc35dd"
        ),
        CgroupOrigin(
            "85af8291-287b-44b0-897e-c4e6a9c8512b", "19e5ed27c5ab22ca59b11ebe481145f03325b330ab94dc2b55b7cec3c5cc35dd"
        ),
    ),
    (
        "kubernetes/kubernetes #49281: --cgroup-root=/container.slice",
        f"/container.slice/container-kubepods.slice/container-kubepods-pod{LOW}.slice/docker-{ID}.scope",
        CgroupOrigin(POD, ID),
    ),
    (
        "k3s-io/k3s #1701: the agent in a slice for runtimes",
        f"/podruntime.slice/k3s-agent.service/kubepods-besteffort-pod{LOW}.slice:cri-containerd:{ID}",
        CgroupOrigin(POD, ID),
    ),
    (
        "SchedMD/slurm, doc/html/cgroup_v2.shtml: several slurmd",
        "/system.slice/gamba1_slurmstepd.scope/job_68/step_0/user/task_0",
        CgroupOrigin(job=68),
    ),
    (
        "SchedMD/slurm, doc/man/man5/cgroup.conf.5: CgroupSlice",
        "/slurm.slice/slurmstepd.scope/job_123/step_batch/user/task_special",
        CgroupOrigin(job=123),
    ),
    (
        "SchedMD/slurm, doc/man/man5/cgroup.conf.5: from 26.05 without CgroupJobIdPaths, which has no number",
        "/system.slice/slurmstepd.scope/sEKNKTV3WPV500/step_0",
        CgroupOrigin(),
    ),
    (
        "moby/moby, BuildKit: a step of a build is no container",
        "/system.slice/system.slice:docker:jvifp9a6b1lxa1kuw8bwfcovf",
        CgroupOrigin(),
    ),
]


@pytest.mark.parametrize(("path", "made_by"), [row[1:] for row in REPORTED], ids=[row[0] for row in REPORTED])
def test_what_people_have_reported(path: str, made_by: CgroupOrigin) -> None:
    assert origin(path) == made_by


# The same from the rules: what root makes above, a runtime's name, and anything that a user makes below.
HEX = "0123456789abcdef"
WORD = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=12)
SLICES = st.lists(
    st.one_of(
        st.sampled_from(["system", "machine", "podruntime", "kubelet", "user-1000"]), WORD.filter(lambda w: w != "user")
    ).map("/{}.slice".format),
    max_size=4,
).map("".join)
IN_SLICES = SLICES.filter(bool)
SERVICE = st.sampled_from(["containerd", "docker", "k3s", "k3s-agent", "rke2-server", "cri-docker", "crio"]).map(
    "/{}.service".format
)
UIDS = st.one_of(st.uuids().map(str), st.text(HEX, min_size=32, max_size=32))
IDS = st.text(HEX, min_size=64, max_size=64)
BELOW = st.sampled_from(
    ["", "/container", "/init.scope", f"/kubepods/pod{POD}/{OTHER}", "/job_7", f"/docker-{ID}.scope"]
)
QOS = st.sampled_from(["", "burstable", "besteffort"])
RUNTIME = st.sampled_from(["cri-containerd", "crio", "docker"])
ROOT = st.sampled_from(["", "kubelet-", "container-"])


@st.composite
def pods(draw: st.DrawFn) -> tuple[str, CgroupOrigin]:
    uid, container, quality, runtime = draw(UIDS), draw(IDS), draw(QOS), draw(RUNTIME)
    made_by = CgroupOrigin(uid, container)
    spelled = draw(st.sampled_from([uid, uid.replace("-", "_")]))
    pod_slice = f"/{draw(ROOT)}kubepods-{quality}{'-' if quality else ''}pod{spelled}.slice"
    match draw(st.sampled_from(["systemd", "cgroupfs", "colon", "service", "mixed"])):
        case "systemd":
            return f"{draw(SLICES)}{pod_slice}/{runtime}-{container}.scope", made_by
        case "cgroupfs":
            above = draw(st.sampled_from(["", "/kubelet"])) + "/kubepods" + (f"/{quality}" if quality else "")
            return f"{above}/pod{uid}/{draw(st.sampled_from(['', 'crio-']))}{container}", made_by
        case "colon":
            return f"{draw(SLICES)}{pod_slice}:{runtime}:{container}", made_by
        case "service":
            return f"{draw(IN_SLICES)}{draw(SERVICE)}{pod_slice}:{runtime}:{container}", made_by
        case _:
            return f"{draw(IN_SLICES)}{draw(SERVICE)}{draw(SLICES)}{pod_slice}/{container}", made_by


@st.composite
def containers(draw: st.DrawFn) -> tuple[str, CgroupOrigin]:
    container, runtime = draw(IDS), draw(st.sampled_from(["docker", "libpod", "nerdctl", "crio", "cri-containerd"]))
    path = draw(
        st.one_of(
            IN_SLICES.map(f"{{}}/{runtime}-{container}.scope".format),
            SLICES.map(f"{{}}/system.slice:{runtime}:{container}".format),
            st.sampled_from(["/docker", "/k8s.io", "/default", "/ecs/task", "/ecs/cluster/task"]).map(
                f"{{}}/{container}".format
            ),
            st.sampled_from(["", f"/{OTHER}"]).map(f"/libpod_parent{{}}/libpod-{container}".format),
        )
    )
    return path, CgroupOrigin(None, container)


@st.composite
def jobs(draw: st.DrawFn) -> tuple[str, CgroupOrigin]:
    job, node = draw(st.integers(1, 2**32)), draw(st.one_of(st.just(""), WORD))
    step = draw(st.sampled_from(["", "/step_0", "/step_batch", "/step_extern/task_special", "/step_0/user/task_0"]))
    path = draw(
        st.one_of(
            IN_SLICES.map(f"{{}}/{node}{'_' if node else ''}slurmstepd.scope/job_{job}{step}".format),
            st.integers(0, 2**32).map(f"/slurm{'_' if node else ''}{node}/uid_{{}}/job_{job}{step}".format),
        )
    )
    return path, CgroupOrigin(job=job)


MADE = st.one_of(pods(), containers(), jobs())
USERS = st.one_of(
    st.just("/.."),
    WORD.map("/{}".format),
    IN_SLICES.flatmap(lambda above: WORD.map(lambda name: f"{above}/{name}.service")),
    IN_SLICES.flatmap(lambda above: WORD.map(lambda name: f"{above}/{name}.scope")),
    SLICES.map("{}/user.slice/user-1000.slice/user@1000.service".format),
    SLICES.map("{}/user.slice".format),
    st.just(USER),
).filter(lambda above: above.rpartition("/")[2] not in ("docker.service", "crio.service", "k3s.service", "kubelet"))


@given(MADE, BELOW)
def test_each_form_that_root_alone_makes_counts(made: tuple[str, CgroupOrigin], below: str) -> None:
    path, made_by = made
    assert origin(path + below) == made_by


@given(USERS, MADE)
def test_no_form_counts_below_what_a_user_may_have(above: str, made: tuple[str, CgroupOrigin]) -> None:
    assert origin(above + made[0]) == CgroupOrigin()


@given(MADE, st.integers(0, 3), st.sampled_from(["freezer", "devices", "memory", "cpuset"]))
def test_whichever_hierarchy_tells_counts(made: tuple[str, CgroupOrigin], at: int, controller: str) -> None:
    lines = ["12:pids:/system.slice/slurmd.service", "1:name=systemd:/system.slice/slurmd.service", "0::/"]
    lines.insert(at, f"9:{controller}:{made[0]}")
    text = "".join(f"{line}\n" for line in lines).encode()
    assert origin(cgroup_of(text)) == made[1]


def test_a_job_of_cgroup_v1_is_in_the_hierarchy_that_slurm_uses() -> None:
    # A job's /proc/self/cgroup under Slurm 21 with proctrack/cgroup alone, as NordicHPC/sonar has it in its tests.
    text = (
        "13:freezer:/slurm/uid_7319/job_748468/step_0\n12:cpu,cpuacct:/system.slice/slurmd.service\n11:hugetlb:/\n"
        "10:blkio:/system.slice/slurmd.service\n9:devices:/system.slice/slurmd.service\n8:misc:/\n7:cpuset:/\n"
        "2:memory:/system.slice/slurmd.service\n1:name=systemd:/system.slice/slurmd.service\n"
    )
    assert origin(cgroup_of(text.encode())) == CgroupOrigin(job=748468)


def test_a_client_that_no_runtime_made_is_shown_as_before() -> None:
    text = "4:memory:/m\n1:name=systemd:/user.slice/user-1000.slice/session-3.scope\n0::/\n"
    assert cgroup_of(text.encode()) == "/user.slice/user-1000.slice/session-3.scope"
