"""How many random examples a test makes: a sample in `make test`, the same each time; many others in `make soak`."""

from typing import Final

from hypothesis import settings

SEARCH: Final = "search"
"""Profile of a campaign: `--hypothesis-profile=search`."""
_MORE: Final = 10


def examples(sample: int) -> int:
    """Return ``sample``, or ten times as many where a campaign searches."""
    return sample * _MORE if settings.get_current_profile_name() == SEARCH else sample
