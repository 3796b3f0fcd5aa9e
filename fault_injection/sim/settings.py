"""What the control daemon remembers for servers to come."""


class Defaults:
    """Settings handed to each new server."""

    def __init__(self) -> None:
        self.percentage = 100.0
        self.priority = 0
        self.pinned_limits: dict[str, int] = {}
        """Bytes by device; a device without a limit is not there."""
