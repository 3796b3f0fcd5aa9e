"""`mpsguard-ctl lanes`: the stock daemons behind the guard, and the evidence for their state."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from mpsguard.cli.session import Session, with_session
from mpsguard.cli.tables import age, show_table
from mpsguard.control_api.handler import Handler
from mpsguard.lanes.settings import replay_commands
from mpsguard.model import LaneReport

if TYPE_CHECKING:
    from mpsguard.daemon.guard import Guard


class Arguments(msgspec.Struct):
    """None."""


class LaneList(msgspec.Struct, frozen=True):
    """The lanes, looked at now."""

    lanes: tuple[LaneReport, ...]


async def serve(guard: Guard, _: Arguments) -> LaneList:
    """The server half."""
    return LaneList(tuple([await lane.fresh() for domain in guard.domains.values() for lane in domain.lanes.all]))


HANDLER = Handler("lanes", Arguments, serve)


@click.command()
@with_session
def lanes(session: Session) -> None:
    """List the lanes with their state, the reason for it, and the settings kept for them."""
    result = session.ask("lanes", Arguments(), LaneList)
    if session.as_json:
        session.print_json(result)
        return
    show_table(
        session.console,
        ("LANE", "STATE", "SINCE", "CONTROL", "STARTS", "ADOPTED", "SETTINGS", "PIPE DIRECTORY", "REASON"),
        [
            (
                lane.name,
                lane.state.value,
                age(lane.since),
                lane.control.pid if lane.control else "-",
                lane.starts,
                "yes" if lane.adopted else "no",
                "; ".join(replay_commands(lane.settings)) or "-",
                lane.pipe_directory,
                lane.reason,
            )
            for lane in result.lanes
        ],
        optional=("PIPE DIRECTORY", "ADOPTED", "STARTS", "SETTINGS"),
        cut="REASON",
    )
