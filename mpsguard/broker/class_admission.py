"""Service classes at a public directory: which class a client gets, what it is refused for, and what is told of it."""

from collections.abc import Sequence

from mpsguard.broker import classification
from mpsguard.broker.admission import Admission
from mpsguard.broker.classification import PRIORITY_VARIABLE, Assignment, Identity
from mpsguard.broker.client_table import ClientTable
from mpsguard.broker.handshake import RefusedError
from mpsguard.config import ServiceClass
from mpsguard.control_api.event_stream import EventStream
from mpsguard.lanes.levers import Levers
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process_reader import UNKNOWN

_PRIORITIES = {"normal": 0, "below_normal": 1}


def levers_of(service_class: ServiceClass) -> Levers:
    """Return what is set for a client of a class."""
    priority = None if service_class.priority is None else _PRIORITIES[service_class.priority]
    return Levers(service_class.sm_share, priority, service_class.memory_limit)


class ClassAdmission:
    """Assigns the clients of one public directory to the classes of its domain."""

    def __init__(
        self,
        name: str,
        classes: Sequence[ServiceClass],
        known: ClientTable,
        *,
        chosen: str | None,
        events: EventStream,
    ) -> None:
        """``chosen``: the class by which the directory is named; None for the domain's own."""
        self._name = name
        self._classes = classes
        self._clients = known
        self._chosen = chosen
        self._events = events
        self._needs_entries = classification.needs_entries(classes)

    async def assign(self, admission: Admission) -> Levers:
        """Give a new client its class, and return the levers for its connection; none for a client that has one.

        Raises:
            RefusedError: its class is full, or refuses a client that lifts itself above it.
        """
        if not admission.is_new:
            return Levers()
        entries = await admission.entries() if self._needs_entries else UNKNOWN
        sender = admission.sender
        client = Identity(
            sender.uid,
            sender.gid,
            entries.cgroup,
            procfs.container(entries.cgroup),
            entries.environment.get(PRIORITY_VARIABLE),
        )
        found = classification.assign(self._classes, client, self._chosen)
        self._tell(found, sender.pid)
        if found.refused:
            raise RefusedError("class", found.refused)
        if found.service_class is None:
            return Levers()
        most = found.service_class.max_clients
        if most is not None and self._clients.of_class(found.service_class.name) >= most:
            raise RefusedError("class", f"class {found.service_class.name} has {most} clients")
        admission.service_class = found.service_class.name
        self._clients.entering_class[admission.key] = found.service_class.name
        return levers_of(found.service_class)

    def _tell(self, found: Assignment, pid: int) -> None:
        got = found.service_class.name if found.service_class else "none"
        if found.denied:
            self._events.publish("class_denied", self._name, pid=pid, service_class=got, detail=found.denied)
        if found.lifted and not found.refused:
            detail = f"{PRIORITY_VARIABLE} gives it a better priority than its class has"
            self._events.publish("class_lifted", self._name, pid=pid, service_class=got, detail=detail)
