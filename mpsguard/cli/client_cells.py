"""Cells of tables about a client, for the list of clients and for the screen."""

from typing import Final, NamedTuple

from mpsguard.guard.control_api.messages.clients import ClientMemory, Survival
from mpsguard.guard.model import Client
from mpsguard.guard.pods import ClientPod

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


def memory_cell(memory: ClientMemory | None) -> str:
    """Return the GPU memory of a client in MiB, marked where it is more than it was promised; "-" if unknown."""
    return "-" if memory is None else f"{memory.bytes >> 20}M{' OVER' if memory.exceeds else ''}"


def lane_cell(client: Client) -> str:
    """Return a client's lane, with that of its second driver (``+``), or the one that it has left (``<``)."""
    if client.second_lane is not None:
        return f"{client.lane} +{client.second_lane}"
    return client.lane if client.lane_before is None else f"{client.lane} <{client.lane_before}"


def survival_cell(survival: Survival | None) -> str:
    """Return whether a client would live through an SM fault, and why not; "-" without a second driver."""
    return "-" if survival is None else str(survival)


def pod_cell(pod: ClientPod | None) -> str:
    """Return namespace and name of a pod; "-" without one."""
    return "-" if pod is None else str(pod)


def container(client: Client) -> str:
    """Return a container's id, short; "-" without one."""
    return (client.container or "-")[:_CONTAINER]
