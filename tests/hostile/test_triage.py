"""Other users' attempts to have an innocent convicted or to wear triage out: a real guard over the simulated stack."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fault_injection.sim.core_dump import core_dump, sm_row, thread_row
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, Program, descriptors

pytestmark = [
    pytest.mark.slow(seconds=45, reason="attacks a real guard"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: attackers are other users"),
]

STRANGER, VICTIM = 65534, 65533
STEP = '[{remedy = "terminate", mode = "enforce", at_least = "likely", grace = 0.2}]'
ENFORCED = f"[domain.remedies]\nsm = {STEP}\nmmu_or_sm = {STEP}"
AS_USER = """
import json, os, signal, sys, time
from pathlib import Path
from fault_injection.sim.cuda import CudaProcess
from tests.integration.peer import Peer
user = int(sys.argv[1])
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
def wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)
def say(event):
    print(json.dumps({"event": event}), flush=True)
def client():
    cuda = CudaProcess()
    cuda.init()
    cuda.create_context(1)
    return cuda
"""
LIVES_ON = "cuda = client()\nsay('started')\ntime.sleep(600)\n"
"""It never asks what came of its work, so that nothing but a signal ends it."""
FAULTS = "cuda = client()\nsay('started')\nwait_for_file(sys.argv[2])\ncuda.launch(0.0, 'trap')\ntime.sleep(600)\n"
LEAVES_A_CHILD = """
cuda = client()
say("started")
if os.fork():
    wait_for_file(sys.argv[2])
    os._exit(0)
wait_for_file(sys.argv[3])
time.sleep(1.5)  # the attacker's own patience: until the guard has forgotten that its leader was there
cuda.launch(0.0, "trap")
time.sleep(600)
"""
STORM = """
for _ in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        peer = Peer(Path(sys.argv[3]))
        peer.connect_as_client()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
say("over")
time.sleep(600)
"""
FILES = """
os.umask(0)
for number in range(int(sys.argv[2])):
    with open(f"{sys.argv[3]}/core.{number + 1}", "wb") as file:
        file.write(bytes.fromhex(sys.argv[4]))
        file.truncate(200 << 20)
say("over")
time.sleep(600)
"""
FORGES = "open(sys.argv[2], 'wb').write(bytes.fromhex(sys.argv[3]))\nsay('over')\ntime.sleep(600)\n"


def run_as(guarded: Guarded, user: int, code: str, *arguments: object) -> Program:
    words = [sys.executable, "-c", AS_USER + code, str(user), *map(str, arguments)]
    guarded.environment["PYTHONPATH"] = str(REPOSITORY)
    return guarded.program(words)


def incidents(guarded: Guarded) -> list[dict[str, Any]]:
    return [event["data"] for event in guarded.events("incident")]


@contextmanager
def guard(domain: str = "", *, cores: bool = False) -> Iterator[Guarded]:
    with Guarded(domain=f"multiuser = true\n{domain}") as running:
        if cores:
            text = running.config.read_text()
            running.config.write_text(
                text.replace("[[domain]]", f'core_directory = "{running.root}/cores"\n[[domain]]', 1)
            )
        running.start()
        yield running


def test_the_only_client_is_not_ended_for_what_a_child_of_an_ended_client_did() -> None:
    with guard(ENFORCED) as guarded:
        attacker = run_as(guarded, STRANGER, LEAVES_A_CHILD, guarded.root / "go", guarded.root / "go-on")
        attacker.expect("started")
        innocent = run_as(guarded, VICTIM, LIVES_ON)
        innocent.expect("started")
        (guarded.root / "go").touch()
        assert attacker.wait() == 0
        wait_for(
            "the attacker is gone", lambda: [each["process"]["pid"] for each in guarded.clients()] == [innocent.pid]
        )
        (guarded.root / "go-on").touch()
        told = wait_for("the fault is judged", lambda: incidents(guarded))
        # Whatever may still come of it has come when the lane is ready again, or the child's end is seen.
        assert all(each["culprit"] is None for each in told), told
        wait_for("the decision", lambda: guarded.events("remedy"))
        assert all(each["culprit"] is None for each in incidents(guarded))
        assert innocent.process.poll() is None


def test_a_dump_under_a_victim_s_name_and_user_proves_no_culprit() -> None:
    with guard(ENFORCED, cores=True) as probe:
        cores = probe.root / "cores"
        victim = run_as(probe, VICTIM, LIVES_ON)
        culprit = run_as(probe, STRANGER, FAULTS, probe.root / "go")
        for each in (victim, culprit):
            each.expect("started")
        dump = core_dump(sms=[sm_row(9, 6, 0x7F0000003840)], threads=[thread_row(6)], grids=1)
        forger = run_as(probe, VICTIM, FORGES, cores / f"core.{victim.pid}", dump.hex())
        forger.expect("over")
        (probe.root / "go").touch()
        told = wait_for("the fault is judged", lambda: incidents(probe))
        forger = run_as(probe, VICTIM, FORGES, cores / f"core.{victim.pid}0", dump.hex())
        forger.expect("over")
        wait_for("the files are refused", lambda: _refused(probe) >= 2)
        assert all(each["culprit"] is None for each in (*told, *incidents(probe)))
        assert victim.process.poll() is None


def _refused(guarded: Guarded) -> int:
    sensors = {sensor["name"]: sensor["detail"] for sensor in guarded.asked("status")["sensors"]}
    words = sensors["core directory"].split("; ")
    return next((int(word.split()[0]) for word in words if word.endswith("files refused")), 0)


def test_a_storm_of_crashes_of_one_user_leaves_the_journal_to_others() -> None:
    with guard() as guarded:
        began = time.monotonic()
        storm = run_as(guarded, STRANGER, STORM, 130, guarded.public)
        innocent = run_as(guarded, VICTIM, LIVES_ON)
        innocent.expect("started")
        storm.expect("over")
        innocent.process.kill()
        wait_for(
            "the other user's crash is told",
            lambda: [each for each in incidents(guarded) if each["culprit"] == innocent.pid],
        )
        # They are counted some seconds after they are told.
        wait_for("the count", lambda: guarded.metric("mpsguard_incidents_total", fault_class="process") > 1)
        told = guarded.metric("mpsguard_incidents_total", fault_class="process")
        # A user's share is 100 in 90 s: as many more as this machine was slow.
        assert told <= 101 + 100 * ((time.monotonic() - began) // 90)


def test_a_flood_of_sparse_core_files_costs_the_guard_nothing_that_stays() -> None:
    with guard(cores=True) as guarded:
        cores, pid = guarded.root / "cores", guarded.guard.pid
        before = descriptors(pid)
        dump = core_dump(sms=[sm_row(9, 6, 0x7F0000003840)])
        flood = run_as(guarded, STRANGER, FILES, 500, cores, dump.hex())
        client = run_as(guarded, VICTIM, LIVES_ON)
        client.expect("started")
        assert descriptors(pid) < before + 400
        flood.expect("over")
        wait_for("the files are refused", lambda: _refused(guarded) >= 400)
        wait_for("descriptors are given back", lambda: descriptors(pid) <= before + 20)
