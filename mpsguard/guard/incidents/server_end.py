"""The end of a lane's servers by the guard: told to triage beforehand, carried out, and published."""

import time

from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.evidence import Evidence, ServerEnding, Source
from mpsguard.guard.incidents.sensor_hub import SensorHub
from mpsguard.guard.lanes.command import CommandFailedError
from mpsguard.guard.lanes.lane import Lane


async def end_servers(lane: Lane, domain: str, sensors: SensorHub, events: EventStream, **told: int) -> bool:
    """Have the control daemon end a lane's servers; return whether it did.

    Args:
        lane: the lane.
        domain: its domain's name.
        sensors: told of each server before it ends, so that no incident follows from that.
        events: receives ``server_ended`` or ``server_not_ended``.
        told: what else the event ``server_ended`` has.
    """
    name = lane.spec.name
    for server in lane.report.servers:
        pid = server.process.pid
        sensors.told(Evidence(source=Source.LANE, observed_at=time.monotonic(), what=ServerEnding(name, pid)))
        try:
            await lane.ask(f"shutdown_server {pid} -f")
        except CommandFailedError as error:
            events.publish("server_not_ended", domain, lane=name, server=pid, detail=str(error))
            return False
        events.publish("server_ended", domain, lane=name, server=pid, **told)
    await lane.fresh()
    return True
