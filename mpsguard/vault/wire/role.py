"""The role in which a process of a program with a standby starts, and the environment variable that carries it."""

from enum import StrEnum
from typing import Final

ROLE_VARIABLE: Final = "MPSGUARD_ROLE"
"""Environment variable with a `ProcessRole`; a process without it is the active one."""

IMAGE_VARIABLE: Final = "MPSGUARD_IMAGE"
"""Environment variable with the name of an image, from which a session is filled in which nothing was published yet."""


class ProcessRole(StrEnum):
    """The role in which a process starts. Later changes are decided in `mpsguard.vault.supervisor.decision`."""

    ACTIVE = "active"
    STANDBY = "standby"
