"""Commands about the vault and its sessions: list, show, checkpoint, release and resize."""

from typing import Any, Final

from mpsguard.guard.control_api.messages.vault import (
    CheckpointArguments,
    CheckpointResult,
    LeaseView,
    RegionView,
    ReleaseArguments,
    ReleaseResult,
    ResizeArguments,
    Resized,
    SessionSummary,
    SessionView,
    ShowArguments,
    VaultList,
)
from mpsguard.guard.control_api.protocol import NoArguments, RequestError
from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.incidents.live_resize import ResizeError
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.errors import BadRequestError, LeaseHeldError, VaultError
from mpsguard.vault.wire.region import SessionKey, check_name
from mpsguard.vault.wire.session_page import CheckpointRequest


async def _vault_list(guard: Guard, _: NoArguments) -> VaultList:
    vault = _vault(guard)
    keys = sorted(vault.store.sessions)
    return VaultList(tuple(_summary(vault, key) for key in keys), vault.counters())


async def _show(guard: Guard, arguments: ShowArguments) -> SessionView:
    vault = _vault(guard)
    key = SessionKey(arguments.uid, arguments.session)
    try:
        session = vault.store.session(key)
        state = vault.state(key)
    except VaultError as error:
        raise RequestError(error.code, str(error)) from None
    return SessionView(
        _summary(vault, key),
        tuple(
            LeaseView(lease.process.pid, lease.uid, lease.role, lease.regions, lease.ready) for lease in session.leases
        ),
        tuple(
            RegionView(
                region.name,
                region.generation,
                region.layout,
                len(region.sealed),
                len(region.metadata),
                region.metadata_version,
            )
            for region in session.regions.values()
        ),
        state.sequence,
        len(state.state or b""),
        vault.store.session_fds[key].latency(session),
        *vault.store.session_fds[key].checkpoints(session),
    )


async def _checkpoint(guard: Guard, arguments: CheckpointArguments) -> CheckpointResult:
    vault = _vault(guard)
    key = SessionKey(arguments.uid, arguments.session)
    try:
        check_name("image", arguments.image)
    except BadRequestError as error:
        raise RequestError("arguments", str(error)) from None
    try:
        number = vault.store.request_checkpoint(key, CheckpointRequest(arguments.image, handover=False))
    except VaultError as error:
        raise RequestError(error.code, str(error)) from None
    return CheckpointResult(key.name, arguments.image, number)


async def _release(guard: Guard, arguments: ReleaseArguments) -> ReleaseResult:
    key = SessionKey(arguments.uid, arguments.session)
    try:
        _vault(guard).lifetimes.release_by_command(key, arguments.region, force=arguments.force)
    except LeaseHeldError as error:
        raise RequestError(error.code, f"{error}; end it first, or release with --force") from None
    except VaultError as error:
        raise RequestError(error.code, str(error)) from None
    guard.events.publish(
        "vault_released", "", uid=key.uid, session=key.name, region=arguments.region, force=arguments.force
    )
    return ReleaseResult(key.name, arguments.region)


async def _resize(guard: Guard, arguments: ResizeArguments) -> Resized:
    vault = _vault(guard)
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


def _vault(guard: Guard) -> Vault:
    if guard.vault is None:
        raise RequestError("failed", "the vault is switched off (vault.enabled in the configuration)")
    return guard.vault.vault


def _summary(vault: Vault, key: SessionKey) -> SessionSummary:
    session = vault.store.session(key)
    return SessionSummary(
        key.uid,
        key.name,
        session.generation,
        None if session.writer is None else session.writer.process.pid,
        len(session.readers),
        len(session.regions),
        sum(len(region.layout.sizes) for region in session.regions.values()),
        sum(region.layout.size for region in session.regions.values()),
        session.keep,
    )


HANDLERS: Final[tuple[Handler[Guard, Any], ...]] = (
    Handler("vault", NoArguments, _vault_list),
    Handler("vault_show", ShowArguments, _show),
    Handler("vault_checkpoint", CheckpointArguments, _checkpoint),
    Handler("vault_release", ReleaseArguments, _release),
    Handler("resize", ResizeArguments, _resize, goes_on="a switchover that has begun goes on: see event takeover"),
)
