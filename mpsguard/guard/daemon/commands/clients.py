"""The server half of `mpsguard-ctl clients`."""

from mpsguard.guard.control_api.handler import Handler
from mpsguard.guard.control_api.messages.clients import Arguments, ClientList, ClientMemory, Watch
from mpsguard.guard.daemon.guard import Guard
from mpsguard.guard.incidents.pipeline import IncidentPipeline
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.uvm_client import Attachment


async def serve(guard: Guard, arguments: Arguments) -> ClientList:
    """The server half."""
    domains = guard.domains.values() if arguments.domain is None else [guard.domain(arguments.domain)]
    found = tuple(client for domain in domains for client in domain.clients.all())
    attachments = guard.pipeline.sensors.attachments() if guard.pipeline else {}
    sensor = guard.pipeline is not None and guard.pipeline.sensors.watches()
    return ClientList(
        found,
        tuple(_watch(client, attachments.get(client.process), sensor) for client in found),
        tuple(guard.pods.of(client) for client in found),
        _memory(guard.pipeline, found) if guard.pipeline else (),
        tuple(guard.domains[client.domain].seconds.survival(client) for client in found),
    )


def _memory(pipeline: IncidentPipeline, clients: tuple[Client, ...]) -> tuple[ClientMemory | None, ...]:
    sizes = pipeline.sensors.client_memory_of_all_gpus()
    exceeding = pipeline.memory.exceeding()
    return tuple(
        ClientMemory(sizes[client.process.pid], client.process in exceeding) if client.process.pid in sizes else None
        for client in clients
    )


def _watch(client: Client, attachment: Attachment | None, sensor: bool) -> Watch:
    if attachment is None:
        return Watch(client.process.pid, False, "unknown to the uvm sensor", sensor=sensor)
    return Watch(client.process.pid, attachment.attached, attachment.reason, attachment.unwatchable, sensor)


HANDLER = Handler("clients", Arguments, serve)
