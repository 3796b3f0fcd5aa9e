"""What a lane is made of."""

from pathlib import Path

import msgspec

from mpsguard.guard.lanes.control_process import Launch


class LaneSpec(msgspec.Struct, frozen=True):
    """What a lane is made of; times in seconds."""

    name: str
    domain: str
    pipe_directory: Path
    log_directory: Path
    control_binary: str
    multiuser: bool
    gpus: tuple[str, ...]
    command_deadline: float
    start_deadline: float
    check_interval: float
    restart_burst: int
    restart_window: float

    @property
    def launch(self) -> Launch:
        """What it takes to start the control daemon."""
        return Launch(
            name=self.name,
            pipe_directory=str(self.pipe_directory),
            log_directory=str(self.log_directory),
            control_binary=self.control_binary,
            multiuser=self.multiuser,
            gpus=self.gpus,
            start_deadline=self.start_deadline,
        )
