"""The server half of `mpsguard-ctl check` and `mpsguard-ctl repaired`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.check import Arguments, Repaired, RepairedArguments
from mpsguard.guard.control_api.probes import ProbeAnswer
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon import standing
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, arguments: Arguments) -> ProbeAnswer:
    """The server half."""
    return standing.probe(guard, arguments.purpose)


async def repaired(guard: Guard, _: RepairedArguments) -> Repaired:
    """The server half."""
    if guard.pipeline is None:
        raise RequestError("busy", "the guard is still starting")
    faults = guard.pipeline.device_faults.repaired()
    guard.events.publish("device_repaired", "", incidents=[fault.incident for fault in faults])
    return Repaired(faults)


HANDLER = Handler("check", Arguments, serve)
REPAIRED_HANDLER = Handler("repaired", RepairedArguments, repaired)
