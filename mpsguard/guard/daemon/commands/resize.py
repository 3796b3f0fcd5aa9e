"""The server half of `mpsguard-ctl resize`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.resize import Arguments, Resized
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.incidents.live_resize import ResizeError
from mpsguard.vault.wire.region import SessionKey


async def serve(guard: Guard, arguments: Arguments) -> Resized:
    """The server half."""
    if guard.vault is None:
        raise RequestError("failed", "the vault is switched off (vault.enabled in the configuration)")
    vault = guard.vault.vault
    found = [
        key
        for key in sorted(vault.store.sessions)
        if key.name == arguments.session and arguments.uid in (None, key.uid)
    ]
    if len(found) > 1:
        owners = ", ".join(str(key.uid) for key in found)
        raise RequestError("arguments", f"which session {arguments.session!r}? uid {owners} have one each (--uid)")
    key = found[0] if found else SessionKey(arguments.uid or 0, arguments.session)
    try:
        return await guard.resizing.resize(vault, key, arguments.share)
    except ResizeError as error:
        raise RequestError("failed", str(error)) from None


HANDLER = Handler("resize", Arguments, serve, goes_on="a switchover that has begun goes on: see event takeover")
