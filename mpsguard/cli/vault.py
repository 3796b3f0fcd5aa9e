"""`mpsguard-ctl vault` and `resize`: what the vault holds, for which user, and what is done to a session."""

import click

from mpsguard.cli.lanes import show_moved
from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.clients import ClientList, ClientsArguments, MoveClientArguments
from mpsguard.guard.control_api.messages.vault import (
    CheckpointArguments,
    CheckpointResult,
    LeaseView,
    ReleaseArguments,
    ReleaseResult,
    ResizeArguments,
    Resized,
    SessionView,
    ShowArguments,
    VaultList,
)
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.linux.times import clock
from mpsguard.vault.wire.checkpoint_requests import CheckpointOutcome
from mpsguard.vault.wire.latency_counts import LatencyCounts
from mpsguard.vault.wire.region import LeaseRole

_START = 300.0
"""Seconds that a standby may take to start: PyTorch from a cold disk, a large model."""


@click.group()
def vault() -> None:
    """Look at GPU memory held in the vault, and release it."""


@vault.command("list")
@with_session
def list_sessions(session: CliSession) -> None:
    """List the sessions with what they hold."""
    result = session.ask("vault", NoArguments(), VaultList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("UID", "SESSION", "GENERATION", "WRITER", "READERS", "REGIONS", "CHUNKS", "MIB", "KEEP"),
        [
            (
                each.uid,
                each.name,
                each.generation,
                each.writer or "-",
                each.readers,
                each.regions,
                each.chunks,
                _mebibytes(each.size),
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
def show(session: CliSession, uid: int, name: str) -> None:
    """Show the session NAME of user UID: its regions, and the processes with leases."""
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
                _mebibytes(region.layout.size),
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
    if result.latency is not None:
        session.console.print(f"requests: {_requests(result.latency)}")
    if result.checkpoint is not None:
        session.console.print(f"checkpoint: {_checkpoint(result.checkpoint)}", markup=False)
    if result.requested_checkpoint is not None and result.requested_checkpoint != result.checkpoint:
        session.console.print(f"asked for: {_checkpoint(result.requested_checkpoint)}", markup=False)


@vault.command()
@click.argument("uid", type=int)
@click.argument("name")
@click.argument("region", required=False)
@click.option(
    "--force",
    is_flag=True,
    help="Even while processes have it open: they keep what they have mapped, but the session of a running program "
    "starts anew.",
)
@with_session
def release(session: CliSession, uid: int, name: str, region: str | None, force: bool) -> None:
    """Take REGION, or all of it, out of the session NAME of user UID."""
    result = session.ask("vault_release", ReleaseArguments(uid, name, region, force), ReleaseResult)
    if session.as_json:
        session.print_json(result)
        return
    session.console.print(f"released {result.session}" + (f": {result.region}" if result.region else ""))


@vault.command()
@click.argument("uid", type=int)
@click.argument("name")
@click.argument("image")
@with_session
def checkpoint(session: CliSession, uid: int, name: str, image: str) -> None:
    """Ask the program of session NAME of user UID for a checkpoint IMAGE.

    It takes it when it publishes next, into its own store of images; `vault show` says what came of it.
    """
    result = session.ask("vault_checkpoint", CheckpointArguments(uid, name, image), CheckpointResult)
    if session.as_json:
        session.print_json(result)
        return
    session.console.print(f"asked {result.session} for {result.image}: it is taken with the next publication")


def _is_program(session: CliSession, pid: int) -> bool:
    """Return whether a process is a client with a second driver: then no session is meant."""
    found = session.ask("clients", ClientsArguments(), ClientList)
    return any(each.process.pid == pid and each.second_driver is not None for each in found.clients)


def _role(lease: LeaseView) -> str:
    return f"{lease.role.value}, ready" if lease.ready and lease.role is LeaseRole.STANDBY else lease.role.value


def _checkpoint(outcome: CheckpointOutcome) -> str:
    """Return the program's words on its last checkpoint; they are the user's, so only what is printable of them."""
    words = "".join(each if each.isprintable() else "?" for each in f"{outcome.image}: {outcome.state}")
    return f"{words}, {_mebibytes(outcome.copied_bytes)} MiB copied, {outcome.took:.3g} s, {clock(outcome.at)}"


def _requests(latency: LatencyCounts) -> str:
    half, most = latency.percentile(0.5), latency.percentile(0.99)
    if half is None or most is None:
        return "none yet"
    return f"{latency.requests()}, p50 {half * 1e3:.3g} ms, p99 {most * 1e3:.3g} ms"


def _mebibytes(size: int) -> str:
    """Return a size in MiB, with as many digits as a small one needs to be more than 0."""
    return f"{size / (1 << 20):.2g}" if size < 10 << 20 else str(size >> 20)


@click.command()
@click.argument("name", metavar="SESSION")
@click.option(
    "--share",
    type=click.FloatRange(0.1, 100),
    required=True,
    help="Percent of the SMs.",
    metavar="PERCENT",
)
@click.option("--uid", type=click.IntRange(0), help="The session's user, if several have one of that name.")
@click.option(
    "--wait",
    type=click.FloatRange(0, min_open=True),
    default=_START,
    show_default=True,
    metavar="SECONDS",
    help="How long its next standby may take to start.",
)
@click.option("--lane", help="Of a program: the lane that it goes to; its own, if none is given.")
@click.option("--close-old", is_flag=True, help="Of a program: as of mpsguard-ctl move.")
@with_session
def resize(
    session: CliSession, *, name: str, share: float, uid: int | None, wait: float, lane: str | None, close_old: bool
) -> None:
    """Give a running session, or a program by its pid, another share of the SMs, without losing anything.

    A program needs the preload and a second driver (MPSGUARD_SECOND_DRIVER); see mpsguard-ctl move. It stays on its
    lane, where its old context takes memory until it ends, or goes to another one.

    The session needs a standby (mpsguard run --standby 1) and a domain with service classes. Its standby is replaced by
    one that starts with the new share, which then takes over. The share holds for what follows, too; it cannot be
    larger than that of the session's class.
    """
    if name.isdigit() and uid is None and _is_program(session, int(name)):
        show_moved(session, MoveClientArguments(int(name), lane, share, let_go=True if close_old else None))
        return
    result = session.ask("resize", ResizeArguments(name, share, uid), Resized, after=wait)
    if session.as_json:
        session.print_json(result)
        return
    before = "" if result.before is None else f", before {result.before:g} %"
    session.console.print(
        f"{result.session} goes on in process {result.pid} with {result.share:g} % of the SMs{before}", markup=False
    )
