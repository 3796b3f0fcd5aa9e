"""Service classes at a public directory: which class a client gets, what it is refused for, and what is told of it."""

from collections.abc import Sequence
from typing import Final

from mpsguard.guard import config
from mpsguard.guard.broker import classification, client_table
from mpsguard.guard.broker.admission import Admission
from mpsguard.guard.broker.classification import MEMORY_VARIABLE, PRIORITY_VARIABLE, Assignment, Identity
from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.broker.handshake import RefusedError
from mpsguard.guard.broker.lowered_shares import ClassCeilings, ProgramShares
from mpsguard.guard.config import DomainConfig, ServiceClass
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.lanes.levers import NONE, Levers
from mpsguard.guard.model import Client
from mpsguard.linux.identity import Credentials, is_root
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process_reader import UNKNOWN, Told

_SHOWN: Final = 64
"""Characters that are told of what a client sets."""
_PRIORITIES = {"normal": 0, "below_normal": 1}


def levers_of(service_class: ServiceClass, *limits: float | None) -> Levers:
    """Return what is set for a client of a class, with further ``limits`` of its share."""
    priority = None if service_class.priority is None else _PRIORITIES[service_class.priority]
    shares = [each for each in (service_class.sm_share, *limits) if each is not None]
    return Levers(min(shares, default=None), priority, service_class.memory_limit)


def class_before(domain: DomainConfig, owner: Credentials, told: Told) -> str | None:
    """Return the class that a guard before this one gave a client, if the configuration was the same."""
    asked = told.environment.get(PRIORITY_VARIABLE)
    identity = Identity(owner.user, owner.gid, told.cgroup, asked)
    directory = told.environment.get("CUDA_MPS_PIPE_DIRECTORY")
    classes, public = domain.classes, domain.pipe_directory
    chosen = next((each.name for each in classes if directory == str(config.class_directory(public, each.name))), None)
    if directory == str(config.standby_directory(public)):
        chosen = classification.named(classes, told.environment)
    found = classification.assign(classes, identity, chosen)
    return found.service_class.name if found.service_class is not None else None


def levers_again(
    client: Client, classes: Sequence[ServiceClass], shares: ProgramShares, ceilings: ClassCeilings
) -> Levers:
    """Return what is set for a known client that connects again, or elsewhere; nothing in a domain without classes."""
    if not classes:
        return NONE
    own = shares.of(client.user, client.program) if client.moved_at is None else client.sm_share
    found = next((each for each in classes if each.name == client.service_class), None)
    return Levers(own) if found is None else levers_of(found, own, ceilings.of(found.name))


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
            sender.user,
            sender.gid,
            entries.cgroup,
            entries.environment.get(PRIORITY_VARIABLE),
        )
        chosen = self._chosen
        if self._by_variable:
            chosen = chosen or classification.named(self._classes, entries.environment)
        found = classification.assign(self._classes, client, chosen)
        self._tell(found, sender)
        if found.refused:
            raise RefusedError("class", found.refused)
        own = self._shares.of(sender.user, program)
        if found.service_class is None:
            admission.levers = Levers(own)
            return
        self._check_place(found.service_class, sender.user)
        self._tell_own_limit(found.service_class, entries.environment.get(MEMORY_VARIABLE), sender)
        admission.service_class = found.service_class.name
        self._clients.entering_class[admission.key] = found.service_class.name
        admission.levers = levers_of(found.service_class, own, self._ceilings.of(found.service_class.name))

    def _check_place(self, service_class: ServiceClass, user: int) -> None:
        name, most, of_user = service_class.name, service_class.max_clients, service_class.places_of_a_user
        if most is not None and self._clients.of_class(name) >= most:
            raise RefusedError("class", f"class {name} has {most} clients (max_clients)")
        if not is_root(user) and of_user is not None and self._clients.of_class_and_user(name, user) >= of_user:
            raise RefusedError("class", f"user {user} has {of_user} clients in class {name} (max_clients_per_user)")

    def _tell_own_limit(self, service_class: ServiceClass, asked: str | None, sender: Credentials) -> None:
        if asked is not None and not classification.keeps_limits(service_class, asked):
            detail = f"{MEMORY_VARIABLE}={procfs.printable(asked)[:_SHOWN]} may shed its limit of memory"
            self._notice("class_not_applied", sender, service_class.name, detail)

    def _tell(self, found: Assignment, sender: Credentials) -> None:
        got = found.service_class.name if found.service_class else "none"
        if found.denied:
            self._notice("class_denied", sender, got, found.denied)
        if found.lifted and not found.refused:
            detail = f"{PRIORITY_VARIABLE} gives it a better priority than its class has"
            self._notice("class_lifted", sender, got, detail)

    def _notice(self, kind: str, sender: Credentials, service_class: str, detail: str) -> None:
        told = {"pid": sender.pid, "service_class": service_class, "detail": detail}
        self._events.publish(kind, self._name, user=sender.user, **told)
