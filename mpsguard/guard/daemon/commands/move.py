"""The server half of `mpsguard-ctl move`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.move import Arguments, Switchover
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, arguments: Arguments) -> Switchover:
    """The server half."""
    domain = guard.domain(arguments.domain)
    if domain.lanes.spare is None:
        raise RequestError("failed", f"domain {domain.name!r} has one lane only (standby = true gives it another)")
    if guard.vault is None:
        raise RequestError("failed", "there is no vault, and so no session that could go on elsewhere")
    return await guard.failover.move(domain.view)


HANDLER = Handler("move", Arguments, serve, goes_on="a switchover that has begun goes on: see event takeover")
