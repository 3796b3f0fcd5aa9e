"""The server half of `mpsguard-ctl lifelines`."""

import time

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.lifelines import Arguments, LifelineList
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, arguments: Arguments) -> LifelineList:
    """The server half."""
    if guard.pipeline is None:
        raise RequestError("busy", "the guard is still starting")
    lifelines = guard.pipeline.sensors.lifelines
    if arguments.release is not None and not lifelines.release_pid(arguments.release, "an operator said so"):
        raise RequestError("failed", f"no lifeline of process {arguments.release} is held")
    return LifelineList(time.monotonic(), tuple(lifelines.held()))


HANDLER = Handler("lifelines", Arguments, serve)
