"""The sentinel: put on a lane that has clients, taken off it, and what its dump adds to an SM fault's verdict.

The stack is simulated, and so is libcuda: a stand-in that writes a made-up dump when it is told to by a signal.
"""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.sim.core_dump import core_dump, sm_row
from mpsguard.linux.processes import procfs
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded, is_running
from tests.integration.sim.sentinels import code_of, culprit_that_lives_on, do_wrong, logged, sentinel


@pytest.fixture
def guarded(library: Path) -> Iterator[Guarded]:
    for left in ("core", "refuse"):
        (library / left).unlink(missing_ok=True)
    with Guarded(domain="sentinel = true", environment={"LD_LIBRARY_PATH": str(library)}) as running:
        running.start()
        yield running


def test_its_dump_names_the_owner_of_the_code(guarded: Guarded, library: Path) -> None:
    innocents = [guarded.client() for _ in range(2)]
    culprit = culprit_that_lives_on(guarded)
    for each in (*innocents, culprit):
        each.expect("started")
    pid = sentinel(guarded)
    (library / "core").write_bytes(core_dump(sms=[sm_row(0), sm_row(9, 6, code_of(culprit))]))
    do_wrong(culprit)
    wait_for("the fault", lambda: any(line.get("state") == "FAULT" for line in logged(guarded, "lane_state")))
    os.kill(pid, signal.SIGUSR1)
    told = wait_for("the name", lambda: [line for line in logged(guarded, "incident") if line["culprit"]])
    assert (told[-1]["fault_class"], told[-1]["confidence"], told[-1]["culprit"]) == ("sm", "likely", culprit.pid)
    assert set(told[-1]["victims"]) == {one.pid for one in innocents}
    assert len({line["id"] for line in logged(guarded, "incident")}) == 1
    # It is off the lane, which recovers, and no client of ours.
    wait_for("its end", lambda: not Path(f"/proc/{pid}").exists())
    assert pid not in {client["process"]["pid"] for client in guarded.clients()}


def test_it_is_there_only_while_clients_are_and_ends_with_the_guard(guarded: Guarded) -> None:
    assert not logged(guarded, "sentinel_ready")
    first = guarded.client()
    first.expect("started")
    pid = sentinel(guarded)
    environment = procfs.environment(pid)
    assert environment["CUDA_MPS_PIPE_DIRECTORY"] == str(guarded.pipe)
    assert "skip_abort" not in environment["CUDA_COREDUMP_GENERATION_FLAGS"]
    first.process.terminate()
    assert first.wait() == 0
    wait_for("its end", lambda: not Path(f"/proc/{pid}").exists())
    guarded.client().expect("started")
    pid = sentinel(guarded, 2)
    status = {entry["name"]: entry for entry in guarded.json("status")["sensors"]}
    assert status["sentinel default-0"]["present"]
    key = procfs.process_key(pid)
    guarded.kill()
    wait_for("its end", lambda: not is_running(key))


def test_one_that_cannot_stand_is_reported_and_harms_no_client(guarded: Guarded, library: Path) -> None:
    (library / "refuse").touch()
    client = guarded.client()
    client.expect("started")
    said = wait_for("its failure", lambda: logged(guarded, "sentinel_failed"))
    assert "807" in said[0]["detail"]
    status = {entry["name"]: entry for entry in guarded.json("status")["sensors"]}
    assert not status["sentinel default-0"]["present"]
    assert client.process.poll() is None
