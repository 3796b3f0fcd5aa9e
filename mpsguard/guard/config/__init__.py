"""The configuration: TOML decoded into frozen types. Each error is one line with file, key, and what is allowed."""

from mpsguard.guard.config.changes import changed_keys, needing_restart
from mpsguard.guard.config.classes import ServiceClass
from mpsguard.guard.config.errors import ConfigError
from mpsguard.guard.config.load import (
    DEFAULT_PATH,
    class_directory,
    domain_of_lane,
    find_control_binary,
    lane_directory,
    load,
    parse,
    public_lock,
    run_directory_of,
    second_directory,
    sections,
    split_address,
    standby_directory,
    validated,
)
from mpsguard.guard.config.objectives import Objective
from mpsguard.guard.config.types import (
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
    "domain_of_lane",
    "find_control_binary",
    "lane_directory",
    "load",
    "needing_restart",
    "parse",
    "public_lock",
    "run_directory_of",
    "second_directory",
    "sections",
    "split_address",
    "standby_directory",
    "validated",
]
