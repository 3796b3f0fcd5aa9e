"""Images that are mapped at once and arrive while the program works: needs the extra ``images``."""

from mpsguard.images.on_demand.arrival import ArrivalError, ArrivingImage, ArrivingRegion, open_on_demand
from mpsguard.images.on_demand.profile import Profile, load_profile, save_profile

__all__ = [
    "ArrivalError",
    "ArrivingImage",
    "ArrivingRegion",
    "Profile",
    "load_profile",
    "open_on_demand",
    "save_profile",
]
