"""Runs inside the virtual machine: the guard's own sensors and triage on the real nvidia-uvm and its tools device.

Three clients share a TSG. One stores to nowhere. The sensors tell; triage says what it was; the culprit is ended by
SIGKILL while the UVM sensor's tracker holds its address space, which is let go of afterwards.

Then two more share another TSG, and the guard's sensor ends between the fault of one and the reading of the list: the
sensor of the next guard, which hears of no uevent, names the culprit. Prints one JSON object.

There is no MPS daemon here: `terminate_client`, which comes before the signal on a real machine, has no part in this.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time

from mpsguard.guard.evidence import ClientCame, Evidence, FaultContained, Source, Trust, UvmFault
from mpsguard.guard.incident import Incident
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.kmod import KmodSensor
from mpsguard.guard.sensors.uvm import UvmSensor
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.processes.process import ProcessHandle

TSG, ANOTHER_TSG = "77", "78"
ADDRESS = 0x7FFF12345000
DONE_SPARSE = "wild 1"
DEADLINE_S = 120.0


class Agent:
    """One client process."""

    def __init__(self, veid: int, tsg: str = TSG) -> None:
        self.process = subprocess.Popen(
            ["/agent", tsg, str(veid)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self.answer() != "ready":
            raise RuntimeError("an agent did not come up")
        self.handle = ProcessHandle.open(self.process.pid)

    def answer(self) -> str:
        """Its next line."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        """Tell it what to do and wait for its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.answer()


async def until(condition: object) -> bool:
    """Let the sensors work until it holds, or the deadline is over."""
    assert callable(condition)
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


def tells_of_the_fault(evidence: Evidence) -> bool:
    """The module's report, or the fatal event in the client's own queue; that queue has lesser ones too."""
    what = evidence.what
    return isinstance(what, FaultContained) or (isinstance(what, UvmFault) and what.fatal)


def where_and_what(evidence: Evidence) -> tuple[int, str]:
    """Address and kind of the access."""
    assert isinstance(evidence.what, FaultContained | UvmFault)
    return evidence.what.address, evidence.what.access


def came(agent: Agent) -> Evidence:
    """What the guard notes of a client when it comes."""
    what = ClientCame("default", "default-0")
    return Evidence(Source.PROCESSES, time.monotonic(), what, process=agent.handle.key, trust=Trust.PROOF)


def introduce(agent: Agent, sensor: KmodSensor) -> None:
    """Tell the sensor of a client, as the guard does."""
    client = Client(agent.handle.key, 0, 0, "agent", "/", None, None, "default", "default-0", 0.0)
    sensor.client_came(client, agent.handle)


def verdict(incident: Incident) -> list[object]:
    """What the test outside judges of an incident."""
    culprit = incident.culprit.pid if incident.culprit else 0
    return [incident.fault_class, incident.confidence, culprit, len(incident.victims), incident.reason]


async def restarted(known: int) -> dict[str, object]:
    """Return what the second guard makes of a fault that the first one, which began at ``known``, did not read."""
    evidence: list[Evidence] = []
    agents = [Agent(veid, ANOTHER_TSG) for veid in range(2)]
    culprit, other = agents
    first = KmodSensor(evidence.append, after=known)
    await asyncio.sleep(0)  # the list is read at the start
    for agent in agents:
        introduce(agent, first)
    facts: dict[str, object] = {"access": culprit.ask(f"wild {ADDRESS:#x}"), "signals": culprit.ask("signals")}
    while facts["signals"] == "signals 0":  # the client is told last
        facts["signals"] = culprit.ask("signals")
    boot, after = first.position()
    first.close()
    facts["first"] = len(evidence)
    second = KmodSensor(evidence.append, after=after)
    await asyncio.sleep(0)
    for agent in agents:
        evidence.append(came(agent))
        introduce(agent, second)
    facts["second"] = await until(lambda: any(isinstance(each.what, FaultContained) for each in evidence))
    facts["incidents"] = [verdict(incident) for incident in triage(evidence)]
    facts["culprit"] = culprit.process.pid
    facts["well"] = other.ask("own")
    facts["read"] = second.position() > (boot, after)
    second.close()
    end(agents)
    return facts


def end(agents: list[Agent]) -> None:
    """End them."""
    for agent in agents:
        agent.handle.close()
        agent.process.kill()
        agent.process.communicate()


async def watch() -> dict[str, object]:
    """Return the whole scenario as facts for the test outside to judge."""
    evidence: list[Evidence] = []
    facts: dict[str, object] = {}
    uvm, kmod = UvmSensor(evidence.append), KmodSensor(evidence.append)
    facts["mode"] = kmod.state().detail
    agents = [Agent(veid) for veid in range(3)]
    culprit, *others = agents
    for agent in agents:
        evidence.append(came(agent))
        introduce(agent, kmod)
        uvm.watch(agent.handle)
    facts["attached"] = await until(lambda: all(each.attached for each in uvm.attachments()))
    facts["well before"] = [agent.ask("own") for agent in agents]

    facts["access"] = await asyncio.to_thread(culprit.ask, f"wild {ADDRESS:#x}")
    facts["told"] = await until(lambda: len({each.source for each in evidence if tells_of_the_fault(each)}) == 2)
    facts["told by"] = sorted(
        [each.source.value, each.process.pid if each.process else 0, *where_and_what(each)]
        for each in evidence
        if tells_of_the_fault(each)
    )
    facts["incidents"] = [verdict(incident) for incident in triage(evidence)]
    facts["culprit"] = culprit.process.pid

    # Contained and drained: the one access has ended. The tracker is the lifeline while the process goes.
    culprit.handle.signal(signal.SIGKILL)
    facts["ended"] = culprit.process.wait(DEADLINE_S)
    facts["well while held"] = [agent.ask("own") for agent in others]
    uvm.unwatch(culprit.handle.key)
    uvm.close()
    facts["well after"] = [agent.ask("own") for agent in others]
    facts["dead"] = others[0].ask("dead")
    kmod.close()
    end(agents)
    facts["restarted"] = await restarted(kmod.position()[1])
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(watch())) + "\n")
    sys.exit(0)
