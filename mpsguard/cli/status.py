"""`mpsguard-ctl status`: is everything well, at one glance and as an exit code."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import msgspec

import mpsguard
from mpsguard.cli.session import Exit, Session, with_session
from mpsguard.cli.tables import age, coloured, show_table
from mpsguard.control_api.handler import Handler
from mpsguard.daemon.health import Health, judge
from mpsguard.model import LaneReport

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard

_EXITS = {Health.HEALTHY: Exit.OK, Health.DEGRADED: Exit.DEGRADED, Health.FAULT: Exit.FAULT}


class Arguments(msgspec.Struct):
    """None."""


class DomainStatus(msgspec.Struct, frozen=True):
    """One domain at one moment."""

    name: str
    pipe_directory: str
    gpus: tuple[str, ...]
    multiuser: bool
    lane: LaneReport
    """The active one."""
    spare: LaneReport | None
    """The one on which standbys wait, if there is one."""
    clients: int
    parked: int
    sockets_held: bool
    """Whether the service manager holds the public sockets, so that clients wait while no guard runs."""
    impersonates: bool
    """Whether clients are introduced to the lane as themselves."""


class SensorStatus(msgspec.Struct, frozen=True):
    """One sensor at one moment."""

    name: str
    present: bool
    detail: str


class Status(msgspec.Struct, frozen=True):
    """The guard at one moment."""

    version: str
    started_at: float
    health: Health
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    domains: tuple[DomainStatus, ...]
    sensors: tuple[SensorStatus, ...]


async def serve(guard: Guard, _: Arguments) -> Status:
    """The server half."""
    domains = tuple(
        [
            DomainStatus(
                name=domain.name,
                pipe_directory=domain.settings.pipe_directory,
                gpus=domain.settings.gpus,
                multiuser=domain.settings.multiuser,
                lane=await domain.lane.fresh(),
                spare=await domain.lanes.spare.fresh() if domain.lanes.spare is not None else None,
                clients=sum(client.lane == domain.lane.spec.name for client in domain.clients.all()),
                parked=sum(entrance.broker.parking.count for entrance in domain.entrances),
                sockets_held=domain.sockets_held,
                impersonates=domain.broker.impersonates,
            )
            for domain in guard.domains.values()
        ]
    )
    states = guard.investigation.sensors.states() if guard.investigation else ()
    real = any(not domain.settings.simulated for domain in guard.domains.values())
    lanes = [lane for domain in domains for lane in (domain.lane, domain.spare) if lane is not None]
    judgement = judge(lanes, {name: state.detail for name, state in states if real and not state.present})
    notes = [
        f"{domain.name}: clients that connect while no guard runs get no MPS (no mpsguard.socket holds the sockets)"
        for domain in domains
        if not domain.sockets_held
    ]
    notes += [
        f"{domain.name}: the guard has no privileges: only its own user's clients are served, under the guard's pid"
        for domain in domains
        if not domain.impersonates
    ]
    notes += [
        f"{domain.name}: {count} clients came past the guard (mpsguard-ctl clients)"
        for domain in guard.domains.values()
        if (count := sum(client.unbrokered for client in domain.clients.all()))
    ]
    notes += [
        f"{domain.name}: simulated: no GPU is behind it"
        for domain in guard.domains.values()
        if domain.settings.simulated
    ]
    sensors = tuple(SensorStatus(name, state.present, state.detail) for name, state in states)
    return Status(
        mpsguard.__version__, guard.started_at, judgement.health, judgement.problems, tuple(notes), domains, sensors
    )


HANDLER = Handler("status", Arguments, serve)


@click.command()
@with_session
def status(session: Session) -> None:
    """Show the guard's health; exit 0 healthy, 3 degraded, 4 a lane in FAULT, 5 no guard."""
    result = session.ask("status", Arguments(), Status)
    if session.as_json:
        session.print_json(result)
    else:
        out = session.console
        out.print("mpsguard", result.version, coloured(result.health), f"for {age(result.started_at)}")
        for problem in result.problems:
            out.print(f"  ! {problem}", markup=False)
        for note in result.notes:
            out.print(f"  · {note}", markup=False)
        show_table(
            out,
            ("DOMAIN", "STATE", "CLIENTS", "PARKED", "LANE", "CONTROL", "SERVERS", "SOCKETS", "PIPE DIRECTORY"),
            [
                (
                    domain.name,
                    lane.state.value,
                    domain.clients,
                    domain.parked,
                    lane.name if lane is domain.lane else f"{lane.name} (standby)",
                    lane.control.pid if lane.control else "-",
                    ",".join(str(server.process.pid) for server in lane.servers) or "-",
                    "held" if domain.sockets_held else "own",
                    domain.pipe_directory,
                )
                for domain in result.domains
                for lane in (domain.lane, domain.spare)
                if lane is not None
            ],
            optional=("SOCKETS", "CONTROL", "SERVERS"),
            cut="PIPE DIRECTORY",
        )
        for sensor in result.sensors:
            out.print(f"  {'+' if sensor.present else '-'} {sensor.name}: {sensor.detail}", markup=False)
    sys.exit(_EXITS[result.health])
