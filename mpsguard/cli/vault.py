"""`mpsguard-ctl vault`: what the vault holds, for whom, and taking it out by command."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Session, with_session
from mpsguard.cli.tables import show_table
from mpsguard.control_api.handler import Handler
from mpsguard.control_api.protocol import RequestError
from mpsguard.vault.counters import Counters
from mpsguard.vault.errors import VaultError
from mpsguard.vault.region import Layout, Role, SessionKey

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard
    from mpsguard.vault.vault import Vault


class Arguments(msgspec.Struct):
    """None."""


class ShowArguments(msgspec.Struct):
    """Which session."""

    uid: int
    session: str


class ReleaseArguments(msgspec.Struct):
    """What; without a region the whole session."""

    uid: int
    session: str
    region: str | None = None
    force: bool = False


class SessionSummary(msgspec.Struct, frozen=True):
    """A session in a line. Sizes in bytes."""

    uid: int
    name: str
    generation: int
    writer: int | None
    """Pid."""
    readers: int
    regions: int
    chunks: int
    size: int
    keep: float | None
    """Seconds it is kept once nobody holds a lease; None: for good."""


class VaultList(msgspec.Struct, frozen=True):
    """All sessions, and the vault's counters."""

    sessions: tuple[SessionSummary, ...]
    counters: Counters


class LeaseView(msgspec.Struct, frozen=True):
    """A lease, without its token."""

    pid: int
    uid: int
    role: Role
    regions: tuple[str, ...]
    ready: bool
    """Of a standby: whether it could go on at once."""


class RegionView(msgspec.Struct, frozen=True):
    """A region, without the application's own words."""

    name: str
    generation: int
    layout: Layout
    sealed: int
    metadata_bytes: int
    metadata_version: int


class SessionView(msgspec.Struct, frozen=True):
    """A session in full."""

    summary: SessionSummary
    leases: tuple[LeaseView, ...]
    regions: tuple[RegionView, ...]
    sequence: int
    """How often its forward state was published; 0: never."""
    state_bytes: int


class Released(msgspec.Struct, frozen=True):
    """Done."""

    session: str
    region: str | None


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
    )


async def serve_release(guard: Guard, arguments: ReleaseArguments) -> Released:
    """The server half of `vault release`."""
    key = SessionKey(arguments.uid, arguments.session)
    try:
        _vault(guard).release_by_command(key, arguments.region, force=arguments.force)
    except VaultError as error:
        raise RequestError(error.code, str(error)) from None
    guard.events.publish(
        "vault_released", "", uid=key.uid, session=key.name, region=arguments.region, force=arguments.force
    )
    return Released(key.name, arguments.region)


HANDLER = Handler("vault", Arguments, serve)
SHOW_HANDLER = Handler("vault_show", ShowArguments, serve_show)
RELEASE_HANDLER = Handler("vault_release", ReleaseArguments, serve_release)


@click.group()
def vault() -> None:
    """Look at GPU memory held in the vault, and release it."""


@vault.command("list")
@with_session
def list_sessions(session: Session) -> None:
    """List the sessions with what they hold."""
    result = session.ask("vault", Arguments(), VaultList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("UID", "SESSION", "GENERATION", "WRITER", "READERS", "REGIONS", "CHUNKS", "MIB", "KEPT"),
        [
            (
                each.uid,
                each.name,
                each.generation,
                each.writer or "-",
                each.readers,
                each.regions,
                each.chunks,
                each.size >> 20,
                "for good" if each.keep is None else f"{each.keep:g} s",
            )
            for each in result.sessions
        ],
        optional=("CHUNKS", "READERS"),
        cut="SESSION",
    )


@vault.command()
@click.argument("uid", type=int)
@click.argument("name")
@with_session
def show(session: Session, uid: int, name: str) -> None:
    """Show the session NAME of user UID: its regions, and who holds leases."""
    result = session.ask("vault_show", ShowArguments(uid, name), SessionView)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("PID", "UID", "ROLE", "REGIONS"),
        [(lease.pid, lease.uid, _role(lease), len(lease.regions)) for lease in result.leases],
    )
    show_table(
        session.console,
        ("REGION", "GENERATION", "CHUNKS", "MIB", "ADDRESS", "GPU", "SEALED", "METADATA"),
        [
            (
                region.name,
                region.generation,
                len(region.layout.sizes),
                region.layout.size >> 20,
                "-" if region.layout.va is None else hex(region.layout.va),
                region.layout.gpu or "-",
                f"{region.sealed} of {len(region.layout.sizes)}",
                f"{region.metadata_bytes} bytes, version {region.metadata_version}",
            )
            for region in result.regions
        ],
        optional=("GPU", "METADATA", "GENERATION"),
        cut="REGION",
    )
    session.console.print(f"forward state: published {result.sequence} times, {result.state_bytes} bytes")


@vault.command()
@click.argument("uid", type=int)
@click.argument("name")
@click.argument("region", required=False)
@click.option("--force", is_flag=True, help="Even while somebody maps it; who does is told.")
@with_session
def release(session: Session, uid: int, name: str, region: str | None, force: bool) -> None:
    """Take REGION, or all of it, out of the session NAME of user UID."""
    result = session.ask("vault_release", ReleaseArguments(uid, name, region, force), Released)
    if session.as_json:
        session.print_json(result)
        return
    session.console.print(f"released {result.session}" + (f": {result.region}" if result.region else ""))


def _vault(guard: Guard) -> Vault:
    if guard.vault is None:
        raise RequestError("failed", "the vault is switched off (vault.enabled in the configuration)")
    return guard.vault.vault


def _role(lease: LeaseView) -> str:
    return f"{lease.role.value}, ready" if lease.ready and lease.role is Role.STANDBY else lease.role.value


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
