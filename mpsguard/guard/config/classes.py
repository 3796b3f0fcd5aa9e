"""Service classes of a domain (clients, share of the GPU), and objectives: the latency that a class is to keep."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from mpsguard.guard.config.errors import ConfigError
from mpsguard.guard.config.values import check_gpu, check_limit
from mpsguard.guard.mps_values import limit_bytes

ClassName = Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9-]{0,31}$")]
Id = Annotated[int, Meta(ge=0, le=2**32 - 2)]
Share = Annotated[float, Meta(ge=0.1, le=100)]
"""Percent of the SMs. The control daemon shows one decimal, and a smaller share as none."""

_WHOLE: Final = 100.0
"""Percent of the SMs: what a class without a share gives."""

TAKEN: Final = ("control", "log", "second", "standby")
"""Names that a pipe directory has already."""
_CGROUP: Final = re.compile(r"^/[^*?\[/]")
_CONTAINER: Final = re.compile(r"^[0-9a-f]{8,64}$")
_POD: Final = re.compile(r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


class ServiceClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A service class: the share of the GPU for each of its clients (docs/guides/classes.md).

    It takes a client for which every list that is given has an entry; without any list it takes none by itself.
    """

    name: ClassName
    """Also the name of its directory below `pipe_directory`, by which a program chooses it."""
    default: bool = False
    """Takes the clients that no other class takes. Without such a class they have what stock MPS gives."""
    uids: tuple[Id, ...] = ()
    """Users of the clients."""
    gids: tuple[Id, ...] = ()
    """Groups of the clients: the primary one of the process."""
    cgroups: tuple[str, ...] = ()
    """Patterns of the control group's whole path, in which `*` stands for any text (fnmatch). It begins with
    the name of the first level: users make groups with any names below one that is theirs."""
    containers: tuple[str, ...] = ()
    """Beginnings of container ids: 8 digits or more."""
    pods: tuple[str, ...] = ()
    """UIDs of Kubernetes pods."""
    slurm_jobs: tuple[Annotated[int, Meta(ge=1)], ...] = ()
    """Numbers of Slurm jobs."""
    choosers: tuple[Id, ...] | Literal["anyone"] = ()
    """Users that may choose the class by its directory, besides root and the clients that it takes."""
    sm_share: Share | None = None
    """Share of the SMs in percent that a client may use at most."""
    priority: Literal["normal", "below_normal"] | None = None
    """Priority of the clients' work where several have some that is ready; a block that runs is not preempted."""
    memory_limit: dict[str, str] = msgspec.field(default_factory=dict)
    """GPU number or UUID to the memory of that GPU that a client may have, such as `"8G"`. The driver's limit is no
    wall: see `memory_over`."""
    memory_over: Literal["report", "terminate"] = "report"
    """What is done with a client that has more than its `memory_limit`, which its own environment can shed: it is
    reported (event `memory_limit_exceeded`), or with `terminate` also ended without harm to the others."""
    max_clients: Annotated[int, Meta(ge=1, le=65536)] | None = None
    """Clients of the class at one time; one more is refused."""
    max_clients_per_user: Annotated[int, Meta(ge=1, le=65536)] | None = None
    """Those of one user other than root. Unset: half of `max_clients`, rounded up, or all in a class that is for a
    single user (`uids`)."""
    lifted: str = ""
    """For a client with a CUDA_MPS_CLIENT_PRIORITY that is better than the class's priority, which MPS lets it have:
    the class that it is put into instead, which may give it nothing more than this one, or `refuse`. Empty: it is only
    reported."""

    @property
    def places_of_a_user(self) -> int | None:
        """How many clients of the class one user other than root may have; None without a limit."""
        if self.max_clients_per_user is not None or self.max_clients is None:
            return self.max_clients_per_user
        if len(self.uids) == 1 and set(self.choosers) <= set(self.uids) and not self.default:
            return self.max_clients
        return -(-self.max_clients // 2)


def check_classes(key: str, classes: Sequence[ServiceClass], *, multiuser: bool) -> None:
    """Raise ConfigError for the first class that is wrong; ``key`` is the domain's path in the file."""
    names = [each.name for each in classes]
    if classes and not multiuser:
        raise ConfigError(
            f"{key}.class: classes need multiuser = true; without it a client of another user waits for the server "
            "to end, and all others with it"
        )
    for index, each in enumerate(classes):
        at = f"{key}.class[{index}]"
        if each.name in TAKEN:
            raise ConfigError(f"{at}.name: {each.name!r} is taken; none of {', '.join(TAKEN)} can be used")
        if names.count(each.name) > 1:
            raise ConfigError(f"{at}.name: {each.name!r} stands in two classes of the domain")
        _check_clients(at, each)
        for gpu, limit in each.memory_limit.items():
            check_gpu(f"{at}.memory_limit", gpu)
            check_limit(f"{at}.memory_limit.{gpu}", limit)
        if (each.max_clients_per_user or 1) > (each.max_clients or math.inf):
            raise ConfigError(
                f"{at}.max_clients_per_user: {each.max_clients_per_user} is more than max_clients, {each.max_clients}"
            )
    by_name = {each.name: each for each in classes}
    for index, each in enumerate(classes):
        _check_lifted(f"{key}.class[{index}].lifted", each, by_name)
    defaults = [each.name for each in classes if each.default]
    if len(defaults) > 1:
        raise ConfigError(f"{key}.class: {defaults[0]!r} and {defaults[1]!r} are both default; one at most")


def _check_clients(at: str, service_class: ServiceClass) -> None:
    for text in service_class.cgroups:
        if not _CGROUP.match(text):
            raise ConfigError(
                f"{at}.cgroups: {text!r} does not begin with / and a name, such as /system.slice/*; a pattern that "
                "fits anywhere in a path takes groups that users make"
            )
    for text in service_class.containers:
        if not _CONTAINER.match(text):
            raise ConfigError(f"{at}.containers: {text!r} is no beginning of a container id: 8 to 64 of 0-9, a-f")
    for text in service_class.pods:
        if not _POD.match(text):
            raise ConfigError(f"{at}.pods: {text!r} is no UID of a pod, such as 01234567-89ab-cdef-0123-456789abcdef")


def _check_lifted(at: str, service_class: ServiceClass, by_name: Mapping[str, ServiceClass]) -> None:
    """A client that takes more than its class gives must not gain by it."""
    name = service_class.lifted
    if name in ("", "refuse"):
        return
    target = by_name.get(name)
    if target is None or target is service_class:
        others = [each for each in by_name if each != service_class.name]
        raise ConfigError(f"{at}: {name!r} is none of {', '.join(['refuse', *others])}")
    better = []
    if (target.sm_share or _WHOLE) > (service_class.sm_share or _WHOLE):
        better.append(f"a larger sm_share ({target.sm_share or _WHOLE:g})")
    if service_class.priority == "below_normal" and target.priority != "below_normal":
        better.append(f"a better priority ({target.priority or 'none, which is normal'})")
    for gpu, limit in service_class.memory_limit.items():
        other = target.memory_limit.get(gpu)
        if other is None or limit_bytes(other) > limit_bytes(limit):
            better.append(f"more memory of GPU {gpu} ({other or 'no limit'})")
    if service_class.memory_limit and service_class.memory_over == "terminate" and target.memory_over == "report":
        better.append("no end of a client beyond its limit of memory (memory_over)")
    if better:
        raise ConfigError(
            f"{at}: class {name!r} would reward a client that takes a better priority than it was given: it has "
            f"{', '.join(better)} than class {service_class.name!r}"
        )


class Objective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A target for the latency of a service class (docs/guides/classes.md#a-target-instead-of-a-number)."""

    service_class: ClassName = msgspec.field(name="class")
    """The class with the target. What is measured are the requests that its programs mark (`session.latency()`)."""
    p99_ms: Annotated[float, Meta(gt=0, le=100_000)]
    """The target: milliseconds that 99 of 100 requests in a window do not exceed."""
    batch: ClassName
    """The class with the share that is moved: as much as the target allows."""
    mode: Literal["off", "observe", "enforce"] = "observe"
    """With `observe`, the guard only says which share it would give. With `enforce`, clients of `batch` that come get
    that share, and its running sessions that have a standby are resized to it."""
    least_share: Share = 10.0
    """Percent of the SMs that `batch` keeps in any case."""
    most_share: Share = 100.0
    """Percent of the SMs that `batch` gets at most; its own `sm_share` is a limit, too."""
    window: Annotated[float, Meta(ge=0.1, le=3600)] = 10.0
    """Seconds that are measured for one decision."""
    least_requests: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 200
    """Without that many requests in a window there is no decision: of 100, a single slow one is the p99."""
    step: Share = 5.0
    """Percent of the SMs in one step up. A step down is one, two or four of these: the further off, the more."""
    calm_below: Annotated[float, Meta(gt=0, lt=1)] = 0.8
    """Fraction of the target below which p99 has to be for the share to rise; in between nothing is changed."""
    calm_windows: Annotated[int, Meta(ge=1, le=1000)] = 3
    """Windows in a row with such a p99 before the share rises."""


def check_objectives(key: str, objectives: Sequence[Objective], classes: Sequence[ServiceClass]) -> None:
    """Raise ConfigError for the first objective that is wrong; ``key`` is the domain's path in the file."""
    by_name = {each.name: each for each in classes}
    measured = [each.service_class for each in objectives]
    for index, each in enumerate(objectives):
        at = f"{key}.objective[{index}]"
        for field, name in (("class", each.service_class), ("batch", each.batch)):
            if name not in by_name:
                there = ", ".join(by_name) or "none"
                raise ConfigError(f"{at}.{field}: the domain has no class {name!r}; it has {there}")
        if measured.count(each.service_class) > 1:
            raise ConfigError(f"{at}.class: {each.service_class!r} stands in two objectives of the domain")
        if each.batch in measured:
            raise ConfigError(f"{at}.batch: {each.batch!r} has an objective itself; it cannot give up SMs for another")
        if each.least_share > each.most_share:
            raise ConfigError(f"{at}.least_share: {each.least_share:g} is more than most_share, {each.most_share:g}")
        given = by_name[each.batch].sm_share
        if given is not None and each.least_share > given:
            raise ConfigError(f"{at}.least_share: {each.least_share:g} is more than class {each.batch} has, {given:g}")
