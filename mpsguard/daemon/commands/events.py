"""The server half of `mpsguard-ctl events`."""

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.events import Arguments, EventList
from mpsguard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> EventList:
    """The server half."""
    return EventList(tuple(guard.events.recent()))


HANDLER = Handler("events", Arguments, serve)
