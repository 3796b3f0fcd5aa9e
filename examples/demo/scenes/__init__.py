"""The scenes of the tour, one file each."""

from typing import Final

from examples.demo.scenes import crash, daemon_dies, fault, guard_dies, second_driver, standby, three_clients
from examples.demo.stage import Scene

SCENES: Final[tuple[Scene, ...]] = (
    three_clients.SCENE,
    fault.SCENE,
    crash.SCENE,
    daemon_dies.SCENE,
    guard_dies.SCENE,
    standby.SCENE,
    second_driver.SCENE,
)
