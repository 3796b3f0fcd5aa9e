"""Commands about the guard itself: its status, events and metrics, probes, and a new configuration."""

from typing import Any, Final

import mpsguard
from mpsguard.guard.config import ConfigError
from mpsguard.guard.control_api.health import ProbeAnswer
from mpsguard.guard.control_api.messages.guard import (
    CheckArguments,
    DomainStatus,
    EventList,
    Exposition,
    Reloaded,
    Repaired,
    SensorStatus,
    Status,
)
from mpsguard.guard.control_api.protocol import NoArguments, RequestError
from mpsguard.guard.control_api.server import Handler
from mpsguard.guard.daemon import guard_view
from mpsguard.guard.daemon.commands.lanes import reports
from mpsguard.guard.daemon.domain import Domain
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.daemon.guard_view import health
from mpsguard.guard.lanes.lane import Lane


def _clients(domain: Domain, lane: Lane | None) -> int:
    return 0 if lane is None else sum(client.lane == lane.spec.name for client in domain.clients.all())


async def _status(guard: Guard, _: NoArguments) -> Status:
    found = list(guard.domains.values())
    of_lane = await reports(found)
    domains = tuple(
        DomainStatus(
            name=domain.name,
            pipe_directory=domain.settings.pipe_directory,
            gpus=domain.settings.gpus,
            multiuser=domain.settings.multiuser,
            lane=of_lane[domain.lane.spec.name],
            spare=of_lane[domain.lanes.spare.spec.name] if domain.lanes.spare is not None else None,
            clients=_clients(domain, domain.lane),
            parked=sum(endpoint.broker.parking.count for endpoint in domain.endpoints),
            sockets_held=domain.sockets_held,
            impersonates=domain.broker.impersonates,
            spare_clients=_clients(domain, domain.lanes.spare),
        )
        for domain in found
    )
    states = guard.pipeline.sensors.states() if guard.pipeline else ()
    lanes = [lane for domain in domains for lane in (domain.lane, domain.spare) if lane is not None]
    judgement = health(guard, lanes, states)
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
        f"{lane.domain}: lane {lane.name} shows {name} {shown}, which was set past the guard or before it: it is not "
        "replayed, as what is shown is less than what was asked for; set it again"
        for lane in lanes
        for name, shown in lane.unasked.items()
    ]
    if guard.http.trouble is not None:
        notes.append(f"no metrics and probes by HTTP: {guard.http.trouble}")
    notes += [
        f"GPU {fault.gpu or '?'}: a device fault stands (incident {fault.incident}): "
        f"{'have it replaced' if fault.lasting else 'reset the GPU'}, then `mpsguard-ctl repaired` if it still stands"
        for fault in (guard.pipeline.device_faults.standing if guard.pipeline else ())
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


async def _check(guard: Guard, arguments: CheckArguments) -> ProbeAnswer:
    return guard_view.probe(guard, arguments.purpose)


async def _repaired(guard: Guard, _: NoArguments) -> Repaired:
    if guard.pipeline is None:
        raise RequestError("busy", "the guard is still starting")
    faults = guard.pipeline.device_faults.repaired()
    guard.events.publish("device_repaired", "", incidents=[fault.incident for fault in faults])
    return Repaired(faults)


async def _events(guard: Guard, _: NoArguments) -> EventList:
    return EventList(tuple(guard.events.recent()))


async def _metrics(guard: Guard, _: NoArguments) -> Exposition:
    guard.refresh_metrics()
    return Exposition(guard.metrics.exposition())


async def _reload(guard: Guard, _: NoArguments) -> Reloaded:
    try:
        return Reloaded(await guard.reload())
    except ConfigError as error:
        raise RequestError("failed", f"nothing was changed: {error}") from None


HANDLERS: Final[tuple[Handler[Guard, Any], ...]] = (
    Handler("status", NoArguments, _status),
    Handler("check", CheckArguments, _check),
    Handler("repaired", NoArguments, _repaired),
    Handler("events", NoArguments, _events),
    Handler("metrics", NoArguments, _metrics),
    Handler("reload", NoArguments, _reload),
)
