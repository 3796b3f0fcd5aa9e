"""The server half of `mpsguard-ctl vault`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.vault import (
    Arguments,
    CheckpointArguments,
    CheckpointResult,
    LeaseView,
    RegionView,
    ReleaseArguments,
    ReleaseResult,
    SessionSummary,
    SessionView,
    ShowArguments,
    VaultList,
)
from mpsguard.guard.control_api.protocol import RequestError
from mpsguard.guard.daemon.guard import Guard
from mpsguard.vault.server.vault import Vault
from mpsguard.vault.wire.errors import BadRequestError, LeaseHeldError, VaultError
from mpsguard.vault.wire.region import SessionKey, check_name
from mpsguard.vault.wire.session_page import CheckpointRequest


async def serve(guard: Guard, _: Arguments) -> VaultList:
    """The server half of `vault list`."""
    vault = _vault(guard)
    keys = sorted(vault.store.sessions)
    return VaultList(tuple(_summary(vault, key) for key in keys), vault.counters())


async def serve_show(guard: Guard, arguments: ShowArguments) -> SessionView:
    """The server half of `vault show`."""
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


async def serve_checkpoint(guard: Guard, arguments: CheckpointArguments) -> CheckpointResult:
    """The server half of `vault checkpoint`."""
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


async def serve_release(guard: Guard, arguments: ReleaseArguments) -> ReleaseResult:
    """The server half of `vault release`."""
    key = SessionKey(arguments.uid, arguments.session)
    try:
        _vault(guard).release_by_command(key, arguments.region, force=arguments.force)
    except LeaseHeldError as error:
        raise RequestError(error.code, f"{error}; end it first, or release with --force") from None
    except VaultError as error:
        raise RequestError(error.code, str(error)) from None
    guard.events.publish(
        "vault_released", "", uid=key.uid, session=key.name, region=arguments.region, force=arguments.force
    )
    return ReleaseResult(key.name, arguments.region)


HANDLER = Handler("vault", Arguments, serve)


SHOW_HANDLER = Handler("vault_show", ShowArguments, serve_show)


CHECKPOINT_HANDLER = Handler("vault_checkpoint", CheckpointArguments, serve_checkpoint)


RELEASE_HANDLER = Handler("vault_release", ReleaseArguments, serve_release)


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
