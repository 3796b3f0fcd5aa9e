"""Memory with guard zones, for programs that use mpsguard directly: an access outside it is absorbed and reported.

    from mpsguard.preload import zones

    with zones.ZoneSpace(zones.ZoneSettings(back=1 << 30)) as space:  # in a process that has a CUDA context
        weights = space.allocate(4 << 30)
        tensor = torch.as_tensor(weights, device="cuda")

The preload library does the same for unmodified programs (docs/guides/preload.md); here, each allocation can have its
own sizes. The guard reads both in the same format. Importing this package needs no CUDA; creating a space needs
cuda-bindings, which the extra `mpsguard[cuda]` installs.
"""

from mpsguard.preload.zone_layout import LayoutError
from mpsguard.preload.zones.driver import Context, Driver
from mpsguard.preload.zones.errors import BudgetError, NoZonesError, SettingsError, UvmError, ZoneCudaError, ZoneError
from mpsguard.preload.zones.settings import ZoneKind, ZoneSettings
from mpsguard.preload.zones.space import ZonedRegion, ZoneSpace

__all__ = [
    "BudgetError",
    "Context",
    "Driver",
    "LayoutError",
    "NoZonesError",
    "SettingsError",
    "UvmError",
    "ZoneCudaError",
    "ZoneError",
    "ZoneKind",
    "ZoneSettings",
    "ZoneSpace",
    "ZonedRegion",
]
