"""The configuration: TOML decoded into frozen types. Each error is one line with file, key, and what is allowed."""

from mpsguard.config.changes import changed_keys, needing_restart
from mpsguard.config.classes import ServiceClass
from mpsguard.config.errors import ConfigError
from mpsguard.config.load import (
    DEFAULT_PATH,
    class_directory,
    find_control_binary,
    lane_directory,
    load,
    parse,
    sections,
    split_address,
    standby_directory,
    validated,
)
from mpsguard.config.objectives import Objective
from mpsguard.config.types import (
    DEFAULT_RUN_DIRECTORY,
    NO_ADDRESS,
    Config,
    DomainConfig,
    GuardConfig,
    LifelineConfig,
    Policy,
    Remedies,
    RemedyName,
    Step,
    VaultConfig,
)

__all__ = [
    "DEFAULT_PATH",
    "DEFAULT_RUN_DIRECTORY",
    "NO_ADDRESS",
    "Config",
    "ConfigError",
    "DomainConfig",
    "GuardConfig",
    "LifelineConfig",
    "Objective",
    "Policy",
    "Remedies",
    "RemedyName",
    "ServiceClass",
    "Step",
    "VaultConfig",
    "changed_keys",
    "class_directory",
    "find_control_binary",
    "lane_directory",
    "load",
    "needing_restart",
    "parse",
    "sections",
    "split_address",
    "standby_directory",
    "validated",
]
