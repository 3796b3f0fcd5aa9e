"""What differs between the control daemons of the branches.

535 and 550 as tests/integration/vendor/test_simulation.py compares them. 580 as recorded on 580.159.04,
and as 550 where the recordings are silent. Nothing is known of 595 that differs: the vendor's page on the v2 interface
adds options of the daemon and of `start_server` alone.
"""

from __future__ import annotations

from typing import NamedTuple

_OWNER = "Control deamon settings can only be modified by the user{} started it or by the root user."
_OTHERS = "Only the root user may {} another user's server."


class Refusals(NamedTuple):
    """What is said to a user without the right, behind "Insufficient privileges for UID N"; None: none is needed."""

    defaults: str | None
    settings: str | None
    """Of another user's server."""
    termination: str | None
    start: str
    shutdown: str


_EXPLAINED = Refusals(
    defaults=_OWNER.format(""),
    settings=_OTHERS.format("change settings for"),
    termination=_OTHERS.format("terminate clients on"),
    start="Only the root user may start server for another user.",
    shutdown=_OTHERS.format("shutdown"),
)


class Driver(NamedTuple):
    """One branch."""

    lacks: frozenset[str]
    """Commands that it does not know."""
    refusals: Refusals
    pid_file: bool
    client_status: bool
    """Whether `ps -f` has a column for it."""
    named_devices: bool
    """Whether a limit of memory may be for a UUID. The others know ordinals."""
    tells_no_limit: bool
    """Whether the query for a default that is none gets a sentence; the others say nothing."""
    tells_version: bool
    """Whether control.log has the binary's version."""


BRANCHES = {
    "535": Driver(
        lacks=frozenset({"get_server_status", "device_query"}),
        refusals=Refusals(None, None, None, "", ""),
        pid_file=False,
        client_status=False,
        named_devices=False,
        tells_no_limit=False,
        tells_version=False,
    ),
    "550": Driver(
        lacks=frozenset({"device_query"}),
        refusals=_EXPLAINED,
        pid_file=True,
        client_status=True,
        named_devices=False,
        tells_no_limit=False,
        tells_version=False,
    ),
    "580": Driver(
        lacks=frozenset(),
        refusals=_EXPLAINED._replace(defaults=_OWNER.format(" who")),
        pid_file=True,
        client_status=True,
        named_devices=True,
        tells_no_limit=True,
        tells_version=True,
    ),
}
NEWEST = "580"
