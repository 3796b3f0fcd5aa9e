"""What the guard waits for when it is told to end, where strangers can hold that up."""

import sys
from typing import Final

from mpsguard.guard.broker import broker, second_claims
from mpsguard.guard.sensors import sensor

PROMISED: Final = 5.0
"""Seconds from SIGTERM to the guard's end."""


def test_all_that_strangers_hold_up_is_waited_for_in_less_than_promised() -> None:
    """Each is closed behind the other one."""
    waiting = [kind for kind in sensor.registered() if hasattr(sys.modules[kind.__module__], "CLOSE_WITHIN")]
    assert {kind.name for kind in waiting} == {"core directory", "gpucore", "uvm", "zones"}
    closing = len(waiting) * sensor.CLOSE_WITHIN + second_claims._CLOSE_WITHIN
    assert broker._DRAIN + closing < PROMISED
