"""Memory with zones about it, for programs that know of mpsguard: an access outside it is absorbed, and told.

    from mpsguard.client import zones

    with zones.ZoneSpace(zones.Settings(back=1 << 30)) as space:  # in a process that has a CUDA context
        weights = space.allocate(4 << 30)
        tensor = torch.as_tensor(weights, device="cuda")

What the preload does for programs as they are (docs/guides/preload.md), this does for one allocation at a time, with
sizes of its own. The guard reads both in the same form. Importing this takes no CUDA; making a space takes
cuda-bindings, which the extra `mpsguard[cuda]` brings.
"""

from mpsguard.client.zones.driver import Context, Driver
from mpsguard.client.zones.errors import BudgetError, CudaError, NoZonesError, SettingsError, UvmError, ZoneError
from mpsguard.client.zones.region import ZonedRegion
from mpsguard.client.zones.settings import Kind, Settings
from mpsguard.client.zones.space import ZoneSpace
from mpsguard.preload.zone_layout import LayoutError

__all__ = [
    "BudgetError",
    "Context",
    "CudaError",
    "Driver",
    "Kind",
    "LayoutError",
    "NoZonesError",
    "Settings",
    "SettingsError",
    "UvmError",
    "ZoneError",
    "ZoneSpace",
    "ZonedRegion",
]
