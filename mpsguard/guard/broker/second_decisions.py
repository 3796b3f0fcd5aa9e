"""What the guard decides of second drivers: whether a process may connect one, and where it repeats its work."""

from typing import Final

from mpsguard.guard.model import Client

ALONE: Final = "alone"
"""It does its work in flight again outside of MPS (docs/concepts/repetition.md)."""
BESIDE: Final = "beside"
"""It does it on the other lane."""
REFUSED: Final = "refused"
"""It does not do it."""
READY: Final = "ready"
"""It may make its next driver ready."""
NOT_READY: Final = "wait"
"""The lane of that takes no clients now, or the process may not."""
_SAME_FAULT: Final = 2.0
"""Seconds by which a fault is seen later on its lane than triage has it begin."""


def refusal(client: Client | None, *, lost: bool, ahead: bool, culprit: bool, begins: bool) -> str:
    """Return why a process may not connect another driver; "" if it may. Pure.

    Args:
        client: the process, as a client of this domain; None if it is none.
        lost: whether the lane that its work is on has faulted under it.
        ahead: whether its user may connect second drivers before that.
        culprit: whether it is proven to have caused a fault: it would only repeat that on the other lane.
        begins: whether the driver is one that the guard has not passed on yet.
    """
    if client is None:
        return "the process is no client of this domain: a second driver needs a first one"
    if culprit:
        return "it is proven to have caused a fault, and would repeat it on the other lane"
    if not begins:
        on = client.second_lane or client.lane
        return f"{on} has faulted under it" if lost and client.second_lane is None else ""
    if not lost and not ahead:
        return f"its lane {client.lane} has not faulted (second_driver: see docs/reference/configuration.md)"
    return ""


def repetition(*, culprit: bool, innocent_of: float | None, lost_at: float, trusted: bool) -> str:
    """Return where a client is to do its work in flight again. Pure.

    Args:
        culprit: whether it is proven to have caused a fault.
        innocent_of: when a fault that it is proven innocent of began; None: of none.
        lost_at: when the fault was seen that it lost its work by.
        trusted: whether the domain's programs are trusted not to fault.
    """
    if culprit:
        return REFUSED
    innocent = innocent_of is not None and innocent_of > lost_at - _SAME_FAULT
    return BESIDE if innocent or trusted else ALONE
