"""Objectives of a domain: a latency that a service class is to keep, and the class that gives up SMs for it."""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from mpsguard.guard.config.classes import ClassName, ServiceClass, Share
from mpsguard.guard.config.errors import ConfigError


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
