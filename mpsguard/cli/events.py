"""`mpsguard-ctl events`: what has happened, and with --follow what happens."""

import sys
import time

import click
import msgspec
import zmq

from mpsguard.cli.session import CliSession, with_session
from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.messages.guard import EventList
from mpsguard.guard.control_api.protocol import Event, NoArguments


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new events until interrupted.")
@click.option("--lines", "-n", type=click.IntRange(0, 1000), default=50, show_default=True, help="How many past ones.")
@with_session
def events(session: CliSession, follow: bool, lines: int) -> None:
    """Show past events, and new ones as they happen. With --json, one JSON document a line."""
    context = zmq.Context()
    try:
        # Subscribe first, then ask for the past: what falls between is seen twice, and told apart by its number.
        stream = _subscribe(context, session) if follow else None
        past = session.ask("events", NoArguments(), EventList).events
        for event in past[len(past) - min(lines, len(past)) :]:
            _show(session, event)
        seen = past[-1].seq if past else 0
        while stream is not None:
            event = msgspec.json.decode(stream.recv_multipart()[1], type=Event)
            if event.seq > seen or event.kind == "guard_started":
                seen = event.seq
                _show(session, event)
    except KeyboardInterrupt:
        return
    finally:
        context.destroy(linger=0)


def _subscribe(context: zmq.Context[zmq.Socket[bytes]], session: CliSession) -> zmq.Socket[bytes]:
    path = protocol.events_socket(session.run_directory)
    session.check_reachable(path)
    stream = context.socket(zmq.SUB)
    stream.setsockopt(zmq.MAXMSGSIZE, protocol.MAX_MESSAGE)
    stream.setsockopt(zmq.SUBSCRIBE, b"")
    stream.connect(f"ipc://{path}")
    return stream


def _show(session: CliSession, event: Event) -> None:
    _write(session, event)
    # At once, into a pipe, too: the next event may come in an hour.
    sys.stdout.flush()


def _write(session: CliSession, event: Event) -> None:
    if session.as_json:
        session.print_json(event)
        return
    clock = time.strftime("%H:%M:%S", time.localtime(event.time))
    details = " ".join(f"{key}={value}" for key, value in event.data.items() if value not in (None, ""))
    session.console.print(
        f"{clock}.{int(event.time * 1000) % 1000:03d} {event.domain or '-':10} {event.kind:20} {details}", markup=False
    )
