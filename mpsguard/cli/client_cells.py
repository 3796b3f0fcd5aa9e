"""Cells of tables about a client, for the list of clients and for the screen."""

from typing import Final, NamedTuple

from mpsguard.model import Client
from mpsguard.pods import ClientPod

_PRIORITIES: Final = ("normal", "below normal")
_CONTAINER: Final = 12
"""Characters of a container's id that are shown, as container runtimes do."""


class ClassCells(NamedTuple):
    """What its service class gives a client."""

    name: str
    share: str
    priority: str
    limits: str
    """Of memory."""


def class_cells(client: Client) -> ClassCells:
    """Return what a client has of its class; "-" for what was not set."""
    return ClassCells(
        client.service_class or "-",
        "-" if client.sm_share is None else f"{client.sm_share:g} %",
        "-" if client.priority is None else _PRIORITIES[client.priority],
        ", ".join(client.memory_limits) or "-",
    )


def pod_cell(pod: ClientPod | None) -> str:
    """Return namespace and name of a pod; "-" without one."""
    return "-" if pod is None else str(pod)


def container(client: Client) -> str:
    """Return a container's id, short; "-" without one."""
    return (client.container or "-")[:_CONTAINER]
