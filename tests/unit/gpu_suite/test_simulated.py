"""The suite end to end on the simulated stack, with the guard itself."""

import pytest

from gpu_suite.main import main


@pytest.mark.parametrize("name", ["clients", "guard_killed", "fault_parking"])
def test_a_measurement_holds_on_the_simulated_stack(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["broker", "--simulated", "--quick", "--only", name, "--deadline", "120"])
    printed = capsys.readouterr().out
    assert status == 0, printed
    assert "SIMULATED" in printed
