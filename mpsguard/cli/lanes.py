"""`mpsguard-ctl lanes`: the stock daemons behind the guard, and the evidence for their state."""

import click

from mpsguard.cli.session import CliSession, with_session
from mpsguard.cli.tables import show_table
from mpsguard.guard.control_api.messages.lanes import LaneList
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.lanes.settings import replay_commands
from mpsguard.linux.times import age


@click.command()
@with_session
def lanes(session: CliSession) -> None:
    """List the lanes with their state, the reason for it, and the settings kept for them."""
    result = session.ask("lanes", NoArguments(), LaneList)
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
