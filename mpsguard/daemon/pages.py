"""The pages of the guard's HTTP address, by path."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from mpsguard.control_api.probes import ProbeKind
from mpsguard.daemon import standing
from mpsguard.daemon.guard import Guard
from mpsguard.daemon.http_service import Page


def _probe(purpose: ProbeKind, guard: Guard) -> Page:
    said = standing.probe(guard, purpose)
    return Page("200 OK" if said.ok else "503 Service Unavailable", f"{said.text}\n")


PAGES: Final[Mapping[str, Callable[[Guard], Page]]] = {
    "/livez": partial(_probe, ProbeKind.LIVE),
    "/readyz": partial(_probe, ProbeKind.READY),
}
