"""The server half of `mpsguard-ctl events`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.events import Arguments, EventList
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> EventList:
    """The server half."""
    return EventList(tuple(guard.events.recent()))


HANDLER = Handler("events", Arguments, serve)
