"""The lanes of a configuration: what each is made of."""

from pathlib import Path

from mpsguard.guard import config
from mpsguard.guard.lanes.control_process import Launch
from mpsguard.guard.lanes.lane_spec import LaneSpec


def lane_spec(guard: config.GuardConfig, domain: config.DomainConfig, binary: str, index: int) -> LaneSpec:
    """What a lane of ``domain`` is made of."""
    directory = config.lane_directory(guard, domain, index)
    policy = domain.policy
    return LaneSpec(
        name=directory.name,
        domain=domain.name,
        pipe_directory=directory / "pipe",
        log_directory=Path(guard.log_directory) / directory.name,
        control_binary=binary,
        multiuser=domain.multiuser,
        gpus=domain.gpus,
        command_deadline=policy.command_deadline,
        start_deadline=policy.start_deadline,
        check_interval=policy.check_interval,
        restart_burst=policy.restart_burst,
        restart_window=policy.restart_window,
    )


def launches(settings: config.Config) -> list[Launch]:
    """Return what it takes to start each lane of every domain; raises ConfigError without a control binary."""
    return [
        lane_spec(settings.guard, domain, config.find_control_binary(domain), index).launch
        for domain in settings.domain
        for index in range(lane_count(domain))
    ]


def lane_count(domain: config.DomainConfig) -> int:
    """Return how many lanes a domain has."""
    return 2 if domain.standby else 1
