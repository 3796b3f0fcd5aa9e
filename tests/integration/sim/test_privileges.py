"""The guard with what it gave up, its launcher, and the lane that keeps what the guard gave up."""

import os
import signal
import socket
from pathlib import Path

import pytest

from mpsguard.guard.processes.privileges import KEPT
from mpsguard.linux.processes.privileges import Capability, filter_library
from mpsguard.vault.wire.address import socket_path
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, descriptors, no_more_descriptors

KEPT_SET = sum(1 << capability for capability in KEPT)
SETS = ("CapPrm", "CapEff", "CapBnd")


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def child_commands(pid: int) -> dict[int, str]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {int(child): Path(f"/proc/{child}/cmdline").read_bytes().decode() for child in children}


def launcher_of(guard: int) -> int:
    (found,) = [child for child, command in child_commands(guard).items() if "launcher" in command]
    return found


def porter_of(guard: int) -> int | None:
    return next((child for child, command in child_commands(guard).items() if "vault.server.porter" in command), None)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
@pytest.mark.skipif(filter_library() is None, reason="libseccomp.so.2 is not installed")
def test_the_guard_has_less_than_its_lane() -> None:
    with Guarded() as guarded:
        guard = guarded.start()
        guarded.client("--iterations", "1").expect("connected")
        control = guarded.lane_in("ACTIVE")["control"]["pid"]
        own = status(os.getpid())
        for name in SETS:
            assert int(status(guard)[name], 16) & ~KEPT_SET == 0
        assert (status(guard)["Seccomp"], status(guard)["NoNewPrivs"]) == ("2", "1")
        for thread in Path(f"/proc/{guard}/task").iterdir():
            assert status(int(thread.name))["CapEff"] == status(guard)["CapEff"]
        for pid in (control, launcher_of(guard)):
            assert [status(pid)[name] for name in (*SETS, "Seccomp")] == [own[name] for name in (*SETS, "Seccomp")]
        (told,) = guarded.events("privileges_dropped")
        assert told["data"] == {"capabilities": True, "filter": True, "less": []}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has capabilities to give up")
@pytest.mark.skipif(filter_library() is None, reason="libseccomp.so.2 is not installed")
def test_a_porter_has_next_to_nothing() -> None:
    with Guarded() as guarded:
        guard = guarded.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(socket_path(guarded.run_directory)))
            porter = wait_for("the porter", lambda: porter_of(guard))
            wait_for("a porter that serves", lambda: status(porter)["Seccomp_filters"] == "2")
            for name in SETS[:2]:
                assert int(status(porter)[name], 16) & ~(1 << Capability.SYS_RESOURCE) == 0


def test_a_guard_with_a_killed_launcher_ends_and_the_next_one_adopts() -> None:
    with Guarded() as guarded:
        guarded.hold_sockets()
        guard = guarded.start()
        client = guarded.client()
        client.expect("connected")
        guarded.clients_of(client.pid)
        control = guarded.lane_in("ACTIVE")["control"]["pid"]
        os.kill(launcher_of(guard), signal.SIGKILL)
        assert guarded.guard.wait(30) == 1
        guarded.start()
        assert guarded.lane_in("ACTIVE")["control"]["pid"] == control
        assert [each["process"]["pid"] for each in guarded.clients()] == [client.pid]
        guarded.client("--iterations", "1").expect("connected")
        assert client.process.poll() is None


def test_a_killed_guard_takes_its_launcher_along_and_leaves_the_lane() -> None:
    with Guarded() as guarded:
        guard = guarded.start()
        guarded.client("--iterations", "1").expect("connected")
        control = guarded.lane_in("ACTIVE")["control"]["pid"]
        launcher = launcher_of(guard)
        guarded.kill()
        wait_for("the launcher's end", lambda: not Path(f"/proc/{launcher}").exists())
        assert Path(f"/proc/{control}").exists()


def test_a_stopped_guard_ends_its_launcher_first() -> None:
    with Guarded() as guarded:
        launcher = launcher_of(guarded.start())
        assert guarded.stop() == 0
        assert not Path(f"/proc/{launcher}").exists()


def test_lanes_started_again_leave_no_descriptor() -> None:
    with Guarded(policy="restart_burst = 100") as guarded:
        guard = guarded.start()
        launcher = launcher_of(guard)
        control = guarded.lane_in("ACTIVE")["control"]["pid"]
        before = descriptors(guard), descriptors(launcher)
        for _ in range(5):
            os.kill(control, signal.SIGKILL)

            def another(last: int = control) -> int | None:
                report = guarded.lane()
                now = report["control"]
                return now["pid"] if now and now["pid"] != last and report["state"] == "ACTIVE" else None

            control = wait_for("another control daemon", another)
        no_more_descriptors(guard, before[0])
        no_more_descriptors(launcher, before[1])
