"""The server half of `mpsguard-ctl clients`."""

from mpsguard.control_api.handler import Handler
from mpsguard.control_api.messages.clients import Arguments, ClientList, Watch
from mpsguard.daemon.guard import Guard
from mpsguard.model import Client
from mpsguard.sensors.uvm_client import Attachment


async def serve(guard: Guard, arguments: Arguments) -> ClientList:
    """The server half."""
    domains = guard.domains.values() if arguments.domain is None else [guard.domain(arguments.domain)]
    found = tuple(client for domain in domains for client in domain.clients.all())
    attachments = guard.pipeline.sensors.attachments() if guard.pipeline else {}
    return ClientList(
        found,
        tuple(_watch(client, attachments.get(client.process)) for client in found),
        tuple(guard.pods.of(client) for client in found),
    )


def _watch(client: Client, attachment: Attachment | None) -> Watch:
    if attachment is None:
        return Watch(client.process.pid, False, "unknown to the uvm sensor")
    return Watch(client.process.pid, attachment.attached, attachment.reason, attachment.unwatchable)


HANDLER = Handler("clients", Arguments, serve)
