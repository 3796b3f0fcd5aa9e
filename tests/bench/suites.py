"""The suites by name; a new one is a package with a tuple MEASUREMENTS and a line here."""

from typing import Final

from tests.bench import (
    broker,
    checkpoint,
    classes,
    failover,
    hostile,
    isolation,
    ops,
    second_driver,
    sensors,
    sm,
    start,
    triage,
)
from tests.bench.core.bench import Measurement

SUITES: Final[dict[str, tuple[Measurement, ...]]] = {
    "broker": broker.MEASUREMENTS,
    "sensors": sensors.MEASUREMENTS,
    "triage": triage.MEASUREMENTS,
    "sm": sm.MEASUREMENTS,
    "isolation": isolation.MEASUREMENTS,
    "failover": failover.MEASUREMENTS,
    "hostile": hostile.MEASUREMENTS,
    "classes": classes.MEASUREMENTS,
    "ops": ops.MEASUREMENTS,
    "checkpoint": checkpoint.MEASUREMENTS,
    "start": start.MEASUREMENTS,
    "second_driver": second_driver.MEASUREMENTS,
}
