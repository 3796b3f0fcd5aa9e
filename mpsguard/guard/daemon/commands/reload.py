"""The server half of `mpsguard-ctl reload`."""

from mpsguard.guard.config import ConfigError
from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.reload import Arguments, Reloaded
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard


async def serve(guard: Guard, _: Arguments) -> Reloaded:
    """The server half."""
    try:
        return Reloaded(await guard.reload())
    except ConfigError as error:
        raise RequestError("failed", f"nothing was changed: {error}") from None


HANDLER = Handler("reload", Arguments, serve)
