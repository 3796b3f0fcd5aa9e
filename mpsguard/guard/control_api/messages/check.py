"""Messages of the commands ``check`` and ``repaired``."""

import msgspec

from mpsguard.guard.control_api.probes import DeviceFault, ProbeKind


class Arguments(msgspec.Struct):
    """What the probe is for."""

    purpose: ProbeKind


class RepairedArguments(msgspec.Struct):
    """None."""


class Repaired(msgspec.Struct, frozen=True):
    """The device faults that no longer stand."""

    device_faults: tuple[DeviceFault, ...]
