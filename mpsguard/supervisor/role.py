"""How a process of a program with a standby begins: the word, and the environment variable that has it."""

from enum import StrEnum
from typing import Final

ROLE_VARIABLE: Final = "MPSGUARD_ROLE"
"""Environment variable with a `Role`; a process that has none is the active one."""


class Role(StrEnum):
    """How a process begins. What becomes of it follows from what happens (`mpsguard.supervisor.decision`)."""

    ACTIVE = "active"
    STANDBY = "standby"
