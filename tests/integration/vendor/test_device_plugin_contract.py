"""`mps-control-daemon` in pods as NVIDIA's device plugin and GPU Operator run them.

SIMULATION of the pods and of nvidia-smi, as there is neither a kubelet nor a GPU here; the control daemon is the
vendor's.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from tests.harness.waiting import wait_for
from tests.harness.whole_lines import whole_lines
from tests.integration.vendor.pod import Pod
from tests.integration.vendor.site import Site, newest

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mount namespaces"),
    pytest.mark.slow(seconds=8, reason="starts guards in pods"),
]

RESOURCE = "nvidia.com/gpu.shared"
PROGRAM = b"/usr/bin/mps-control-daemon"
"""What config-manager looks for as the first word of a command line."""
CONFIG = """\
version: v1
flags:
  migStrategy: none
sharing:
  mps:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - name: nvidia.com/gpu
      replicas: {replicas}
"""
NVIDIA_SMI = """\
#!/bin/sh
# SIMULATION of nvidia-smi: two GPUs, one of which is partitioned.
case "$1" in
--query-gpu=*) echo "0, GPU-aa, 81559, 9.0, Disabled"; echo "1, GPU-bb, 81559, 9.0, Enabled" ;;
*) echo "$(date +%s%N) $*" >>/smi/calls ;;
esac
"""
CONTAINER = """
cp "$PROGRAMS"/* $root/usr/bin/
exec chroot $root mps-control-daemon
"""
HEALTH = """
printf get_default_active_thread_percentage |
    chroot $root env -i CUDA_MPS_PIPE_DIRECTORY=/mps/$R/pipe CUDA_MPS_LOG_DIRECTORY=/mps/$R/log "$VENDOR"
"""
"""The plugin's, in its own pod: nothing in the environment, and no newline."""
QUERY = "get_default_active_thread_percentage"


class Node:
    """A node's `/run/nvidia/mps`, its configuration, and its pods."""

    def __init__(self, site: Site) -> None:
        self.site = site
        # Short: a socket's path has at most 107 bytes.
        self.mps, self.config, self.smi = site.root / "m", site.root / "config", site.root / "smi"
        for directory in (self.mps, self.config, self.smi):
            directory.mkdir()
        self.pipes = self.mps / RESOURCE / "pipe"
        self.ready, self.started = self.mps / ".ready", self.mps / RESOURCE / ".started"
        self.replicas(4)
        # Not on PATH: they are copied to where the image has them.
        self.programs = site.root / "image"
        self.programs.mkdir()
        site.install("mps-control-daemon", "device_plugin").rename(self.programs / "mps-control-daemon")
        fake = self.programs / "nvidia-smi"
        fake.write_text(NVIDIA_SMI)
        fake.chmod(0o755)
        self._pods = 0

    def replicas(self, count: int) -> None:
        (self.config / "config.yaml").write_text(CONFIG.format(replicas=count))

    def pod(self, script: str = CONTAINER, *, host_pid: bool = False, **variables: str) -> Pod:
        self._pods += 1
        mounts = {"/mps": self.mps, "/config": self.config, "/smi": self.smi}
        given = {"NODE_NAME": "node", "CONFIG_FILE": "/config/config.yaml", "PROGRAMS": str(self.programs)}
        directory = self.site.root / f"pod-{self._pods}"
        return Pod(self.site, directory, mounts, script, {**given, **variables}, host_pid=host_pid)

    def daemon(self) -> int:
        """The daemon's pid, found as config-manager finds it."""
        # A child has the first word, too, until it executes nvidia-smi.
        (found,) = wait_for(
            "the daemon", lambda: alone if len(alone := _with_first_word(PROGRAM, self.mps)) == 1 else []
        )
        return found

    def percentage(self) -> str:
        return self.site.run(QUERY, pipes=self.pipes).stdout

    def calls(self) -> list[tuple[int, str]]:
        """What nvidia-smi was asked to change: nanoseconds of UNIX time, and the arguments."""
        return [(int(line.split()[0]), line.partition(" ")[2]) for line in whole_lines(self.smi / "calls")]


def _with_first_word(word: bytes, mps: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            named = entry.name.isdigit() and (entry / "cmdline").read_bytes().split(b"\0")[0] == word
            # Of this test, not of one that runs beside it.
            if named and os.path.samestat(os.stat(entry / "root/mps"), os.stat(mps)):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def commands(log: Path) -> dict[str, int]:
    """The commands in a control.log that set defaults, with nanoseconds of UNIX time."""
    pattern = re.compile(r"^\[(\S+ \S+) Control +\d+\] Cmd:(set_default.*)$", re.MULTILINE)
    found = pattern.findall(log.read_text())
    return {
        text.strip(): int(datetime.fromisoformat(when).replace(tzinfo=UTC).timestamp() * 1e9) for when, text in found
    }


@pytest.fixture
def node() -> Iterator[Node]:
    with Site(newest()) as site:
        site.environment["TZ"] = "UTC"
        yield Node(site)


def test_on_the_host_the_pod_is_a_shim(node: Node) -> None:
    site = node.site
    with node.pod() as pod:
        daemon = node.daemon()
        # Without a guard on the host nothing is ready, and the pod goes on trying.
        assert not node.ready.exists()
        assert site.run("-d", pipes=node.pipes).returncode == 0
        (guard,) = site.processes("mpsguard.cli.guard")
        # Nor with one that takes no settings of a container's root. The second try begins when the first is over.
        for tries in (1, 2):
            os.kill(daemon, signal.SIGHUP)
            wait_for("a refused limit", partial(_has_tried, site, tries))
        assert not node.ready.exists()
        assert not node.started.exists()
        with (node.pipes / ".mpsguard/mpsguard.toml").open("a") as config:
            config.write("\n[domain.policy]\nprivileged_containers = true\n")
        os.kill(guard, signal.SIGHUP)
        wait_for("the reload", lambda: "reloaded" in _events(site))
        os.kill(daemon, signal.SIGHUP)
        wait_for("the shim to be ready", node.ready.exists)

        set_at = commands(site.logs / "control.log")
        assert [text for _, text in node.calls()][-1] == "-i GPU-aa -c EXCLUSIVE_PROCESS"
        # In the plugin's order; control.log has milliseconds.
        order = [
            node.calls()[-1][0] - 10**6,
            set_at["set_default_device_pinned_mem_limit 0 20389M"],
            set_at["set_default_active_thread_percentage 25"],
        ]
        assert order == sorted(order)
        # A file's times are of another clock, which is ticks behind that of the log. That no limit was set by the time
        # of a file is seen above: there was none while the limits were refused.
        assert node.started.stat().st_mtime_ns <= node.ready.stat().st_mtime_ns

        with node.pod(HEALTH, R=RESOURCE, VENDOR=str(site.vendor)) as plugin:
            assert plugin.output() == "25.0\n"

        lane = site.processes("nvidia-cuda-mps-control -d")
        # A file that is wrong changes nothing; the next one is read again.
        (node.config / "config.yaml").write_text("sharing: {mps: {resources: [{name: gpu, replicas: many}]}}")
        os.kill(daemon, signal.SIGHUP)
        node.replicas(2)
        os.kill(daemon, signal.SIGHUP)
        wait_for("the new share", lambda: node.percentage() == "50.0\n")
        assert node.daemon() == daemon
        pod.kill()

    # Its end harms no process on the host, and what it has left behind is no longer believed.
    assert node.percentage() == "50.0\n"
    before = node.ready.stat().st_mtime_ns
    with node.pod() as pod:
        wait_for("another shim", lambda: node.ready.exists() and node.ready.stat().st_mtime_ns > before)
        os.kill(node.daemon(), signal.SIGTERM)
        assert pod.process.wait(30) == 0
    assert not node.ready.exists()
    assert not node.started.exists()
    assert node.percentage() == "50.0\n"
    assert site.processes("mpsguard.cli.guard") == [guard]
    assert lane == site.processes("nvidia-cuda-mps-control -d")


def _has_tried(site: Site, times: int) -> bool:
    return (site.logs / "control.log").read_text().count("Cmd:set_default") >= times


def _events(site: Site) -> list[str]:
    return [json.loads(line)["event"] for line in whole_lines(site.logs / "mpsguard.log") if line]


def test_in_a_single_container_everything_ends_with_it_in_order(node: Node) -> None:
    with node.pod(host_pid=True, MPSGUARD_MODE="single-container") as pod:
        wait_for("ready", lambda: node.ready.exists() or not pod.runs())
        assert pod.runs(), pod.output()
        assert node.started.exists()
        assert (node.mps / RESOURCE / "log" / "control.log").exists()
        assert node.percentage() == "25.0\n"
        daemon, lane = node.daemon(), node.site.processes("nvidia-cuda-mps-control -d")
        # The guard's death is a matter of the container alone: there is another, and the lane is the same.
        (guard,) = _in_namespace_of(daemon, "mpsguard.cli.guard")
        os.kill(guard, signal.SIGKILL)
        assert node.percentage() == "25.0\n"
        assert lane == node.site.processes("nvidia-cuda-mps-control -d")
        os.kill(daemon, signal.SIGTERM)
        assert pod.process.wait(30) == 0
        assert not node.site.processes("nvidia-cuda-mps-control -d")
    assert [text for _, text in node.calls()] == ["-i GPU-aa -c EXCLUSIVE_PROCESS", "-i GPU-aa -c DEFAULT"]
    left = {str(path.relative_to(node.mps)) for path in node.mps.rglob("*")} & {
        ".ready",
        f"{RESOURCE}/.started",
        f"{RESOURCE}/log",
    }
    assert left == set()


def _in_namespace_of(pid: int, words: str) -> list[int]:
    namespace = os.readlink(f"/proc/{pid}/ns/mnt")
    every = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    found = []
    for each in every:
        try:
            line = Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if words in line and os.readlink(f"/proc/{each}/ns/mnt") == namespace:
                found.append(each)
        except OSError:
            continue
    return found


MOUNT = """
cp "$PROGRAMS"/* $root/usr/bin/
chroot $root mps-control-daemon mount-shm || echo refused $?
chroot $root mps-control-daemon mount-shm || echo refused $?
"""


def test_in_a_single_container_the_clients_shared_memory_is_mounted_anew(node: Node) -> None:
    script = f"""{MOUNT}
chroot $root grep ' /mps/shm ' /proc/self/mounts
chroot $root df --output=size -k /mps/shm
"""
    with node.pod(script, MPSGUARD_MODE="single-container") as pod:
        said = pod.output().splitlines()
    (line,) = [each for each in said if "/mps/shm " in each]
    _, _, kind, options, *_ = line.split()
    assert kind == "tmpfs"
    assert {"rw", "nosuid", "nodev", "noexec", "relatime"} <= set(options.split(","))
    total = int(re.findall(r"MemTotal: +(\d+) kB", Path("/proc/meminfo").read_text())[0])
    # In pages; the kernel rounds up.
    assert abs(total // 2 - int(said[-1])) <= 4


def test_on_the_host_the_clients_shared_memory_is_the_hosts(node: Node) -> None:
    """Servers on the host and clients in pods meet there: another file system would keep them apart."""
    with node.pod(MOUNT) as pod:
        assert [each for each in pod.output().splitlines() if each.startswith("refused")] == ["refused 1"] * 2
    bound = "mkdir $root/mps/shm; mount --bind /dev/shm $root/mps/shm; stat --format=%d /dev/shm; "
    with node.pod(bound + MOUNT + "stat --format=%d $root/mps/shm") as pod:
        before, after = pod.output().splitlines()
    assert before == after


def test_without_a_configuration_it_waits(node: Node) -> None:
    with node.pod(CONFIG_FILE="") as pod:
        wait_for("ready", node.ready.exists)
        assert pod.runs()
        assert node.calls() == []


def test_too_many_replicas_are_one_line(node: Node) -> None:
    node.replicas(49)
    with node.pod() as pod:
        said = pod.output()
        assert pod.process.returncode == 1
    assert len(said.splitlines()) == 1
    assert not node.ready.exists()


def test_a_configuration_without_sharing_switches_mps_off_and_one_with_it_on(node: Node) -> None:
    """The config-manager links its fallback `empty` to /dev/null (NVIDIA/k8s-device-plugin, cmd/config-manager)."""
    config = node.config / "config.yaml"
    with node.pod(host_pid=True, MPSGUARD_MODE="single-container", CUDA_MPS_CLIENT_PRIORITY="1") as pod:
        wait_for("ready", lambda: node.ready.exists() or not pod.runs())
        assert node.percentage() == "25.0\n"
        # The plugin gives its daemon no variable of the container's.
        assert node.site.run("get_default_client_priority", pipes=node.pipes).stdout == "0\n"
        daemon = node.daemon()
        config.unlink()
        config.symlink_to("/dev/null")
        os.kill(daemon, signal.SIGHUP)
        wait_for("the end of the lane", lambda: not node.site.processes("nvidia-cuda-mps-control -d"))
        wait_for("ready again", lambda: node.ready.exists() and not node.started.exists())
        assert pod.runs()
        config.unlink()
        node.replicas(2)
        os.kill(daemon, signal.SIGHUP)
        wait_for("started again", node.started.exists)
        assert node.percentage() == "50.0\n"
        os.kill(daemon, signal.SIGTERM)
        assert pod.process.wait(30) == 0
    modes = ["EXCLUSIVE_PROCESS", "DEFAULT", "EXCLUSIVE_PROCESS", "DEFAULT"]
    assert [text for _, text in node.calls()] == [f"-i GPU-aa -c {mode}" for mode in modes]


@pytest.mark.parametrize("text", ["", "# version: v1\n", "sharing: {timeSlicing: {resources: []}}\n"])
def test_a_configuration_without_sharing_asks_for_no_gpu(node: Node, text: str) -> None:
    (node.config / "config.yaml").write_text(text)
    (node.programs / "nvidia-smi").unlink()
    with node.pod() as pod:
        wait_for("ready", node.ready.exists)
        assert pod.runs()
