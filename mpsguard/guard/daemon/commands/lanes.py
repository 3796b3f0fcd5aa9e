"""The server half of `mpsguard-ctl lanes`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.lanes import Arguments, LaneList
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> LaneList:
    """The server half."""
    return LaneList(tuple([await lane.fresh() for domain in guard.domains.values() for lane in domain.lanes.all]))


HANDLER = Handler("lanes", Arguments, serve)
