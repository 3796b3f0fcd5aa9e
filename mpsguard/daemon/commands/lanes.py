"""The server half of `mpsguard-ctl lanes`."""

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.lanes import Arguments, LaneList
from mpsguard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> LaneList:
    """The server half."""
    return LaneList(tuple([await lane.fresh() for domain in guard.domains.values() for lane in domain.lanes.all]))


HANDLER = Handler("lanes", Arguments, serve)
