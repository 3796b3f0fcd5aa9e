"""Service classes at a public directory: which class a client gets, what it is refused for, and what is told of it."""

from collections.abc import Sequence

from mpsguard.broker import classification, client_table
from mpsguard.broker.admission import Admission
from mpsguard.broker.class_ceilings import ClassCeilings
from mpsguard.broker.classification import PRIORITY_VARIABLE, Assignment, Identity
from mpsguard.broker.client_table import ClientTable
from mpsguard.broker.handshake import RefusedError
from mpsguard.broker.program_shares import ProgramShares
from mpsguard.config import ServiceClass
from mpsguard.control_api.event_stream import EventStream
from mpsguard.lanes.levers import Levers
from mpsguard.linux.processes.process_reader import UNKNOWN

_PRIORITIES = {"normal": 0, "below_normal": 1}


def levers_of(service_class: ServiceClass, *limits: float | None) -> Levers:
    """Return what is set for a client of a class, with further ``limits`` of its share."""
    priority = None if service_class.priority is None else _PRIORITIES[service_class.priority]
    shares = [each for each in (service_class.sm_share, *limits) if each is not None]
    return Levers(min(shares, default=None), priority, service_class.memory_limit)


class ClassAdmission:
    """Assigns the clients of one public directory to the classes of its domain."""

    def __init__(
        self,
        name: str,
        classes: Sequence[ServiceClass],
        known: ClientTable,
        *,
        chosen: str | None,
        by_variable: bool,
        shares: ProgramShares,
        ceilings: ClassCeilings,
        events: EventStream,
    ) -> None:
        """Create it.

        Args:
            name: of the domain.
            classes: the domain's.
            known: the domain's clients.
            chosen: the class by which the directory is named; None for the domain's own.
            by_variable: whether MPSGUARD_CLASS chooses one: the directory of standbys is no class's.
            shares: of single programs.
            ceilings: what objectives leave to classes.
            events: receives clients that do not get what they chose.
        """
        self._name = name
        self._classes = classes
        self._clients = known
        self._chosen = chosen
        self._by_variable = by_variable
        self._shares = shares
        self._ceilings = ceilings
        self._events = events
        self._needs_entries = classification.needs_entries(classes)

    async def assign(self, admission: Admission) -> None:
        """Give a new client its class, and what is to be set at its server for it.

        Raises:
            RefusedError: its class is full, or refuses a client that lifts itself above it.
        """
        if not admission.is_new:
            return
        sender = admission.sender
        needed = self._needs_entries or len(self._shares) > 0 or self._by_variable
        entries = await admission.entries() if needed else UNKNOWN
        program = client_table.program_of(entries.environment)
        client = Identity(
            sender.uid,
            sender.gid,
            entries.cgroup,
            entries.environment.get(PRIORITY_VARIABLE),
        )
        chosen = self._chosen
        if self._by_variable:
            chosen = chosen or classification.named(self._classes, entries.environment)
        found = classification.assign(self._classes, client, chosen)
        self._tell(found, sender.pid)
        if found.refused:
            raise RefusedError("class", found.refused)
        own = self._shares.of(sender.uid, program)
        if found.service_class is None:
            admission.levers = Levers(own)
            return
        self._check_place(found.service_class, sender.uid)
        admission.service_class = found.service_class.name
        self._clients.entering_class[admission.key] = found.service_class.name
        admission.levers = levers_of(found.service_class, own, self._ceilings.of(found.service_class.name))

    def _check_place(self, service_class: ServiceClass, uid: int) -> None:
        name, most, of_user = service_class.name, service_class.max_clients, service_class.places_of_a_user
        if most is not None and self._clients.of_class(name) >= most:
            raise RefusedError("class", f"class {name} has {most} clients (max_clients)")
        if uid != 0 and of_user is not None and self._clients.of_class_and_user(name, uid) >= of_user:
            raise RefusedError("class", f"uid {uid} has {of_user} clients in class {name} (max_clients_per_user)")

    def _tell(self, found: Assignment, pid: int) -> None:
        got = found.service_class.name if found.service_class else "none"
        if found.denied:
            self._events.publish("class_denied", self._name, pid=pid, service_class=got, detail=found.denied)
        if found.lifted and not found.refused:
            detail = f"{PRIORITY_VARIABLE} gives it a better priority than its class has"
            self._events.publish("class_lifted", self._name, pid=pid, service_class=got, detail=detail)
