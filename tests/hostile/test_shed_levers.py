"""What a class gives, and a client that wants another one's: one that comes again, and one that comes meanwhile."""

import os
import re

import pytest

from tests.harness.waiting import wait_for
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=30, reason="starts guards and clients"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

CLASSES = """
multiuser = true
standby = true
second_driver = "hot"
[[domain.class]]
name = "critical"
uids = [0]
[[domain.class]]
name = "batch"
default = true
sm_share = 40
priority = "below_normal"
memory_limit = { 0 = "2G" }
"""
GIVEN = f"share=40 priority=1 0={2 << 30}"
AT_REST = "share=100 priority=0"
IMPORTS = "from pathlib import Path\nfrom fault_injection.sim.cuda import CudaProcess"
COMES_AGAIN = """
directory = Path(PUBLIC) / sys.argv[2]
# As the driver of a program does that is no client of the lane yet.
CudaProcess(Path(PUBLIC)).init()
let_go = CudaProcess(directory)
let_go.init()
let_go.close()
kept = CudaProcess(directory)
kept.init()
kept.create_context(1)
tell("connected")
signal.pause()
"""
CROWD = """
def come_on_and_on():
    while True:
        child = os.fork()
        if not child:
            # It waits for its server's answer and no longer.
            CudaProcess(Path(PUBLIC)).init()
            os._exit(0)
        os.waitpid(child, 0)
for _ in range(4):
    if not os.fork():
        come_on_and_on()
tell("they come")
signal.pause()
"""
VICTIMS = """
for _ in range(40):
    child = os.fork()
    if not child:
        CudaProcess(Path(PUBLIC)).init()
        tell("came", pid=os.getpid())
        os._exit(0)
    os.waitpid(child, 0)
tell("done")
"""


def levers(guarded: Guarded, lane: str, pid: int) -> list[str]:
    """What a process was given at each of its connections so far."""
    log = (guarded.root / "log" / lane / "server.log").read_text()
    return [found.strip() for found in re.findall(rf"SIMULATED levers of {pid}: (.*)\n", log)]


@pytest.mark.parametrize(("directory", "lane"), [("", "default-0"), ("second", "default-1")])
def test_each_connection_of_a_client_has_what_its_class_gives(directory: str, lane: str) -> None:
    with Guarded(domain=CLASSES) as guarded:
        guarded.start()
        sheds = attack(guarded, COMES_AGAIN, directory, imports=IMPORTS)
        sheds.expect("connected")
        # The one let go, that of the driver, that of its context.
        wait_for("its connections are logged", lambda: len(levers(guarded, lane, sheds.pid)) >= 3)
        assert set(levers(guarded, lane, sheds.pid)) == {GIVEN}
        assert not guarded.events("class_not_applied")


def test_a_client_without_levers_does_not_get_those_of_one_that_comes_at_the_same_time() -> None:
    with Guarded(domain=CLASSES) as guarded:
        guarded.start()
        attack(guarded, CROWD, imports=IMPORTS, start_new_session=True).expect("they come")
        victims = attack(guarded, VICTIMS, uid=0, imports=IMPORTS)
        pids = []
        while (told := victims.expect("came", "done"))["event"] == "came":
            pids.append(told["pid"])
        assert len(pids) == 40
        wait_for("they are logged", lambda: all(levers(guarded, "default-0", pid) for pid in pids))
        assert {each for pid in pids for each in levers(guarded, "default-0", pid)} == {AT_REST}
