"""The suite end to end on the simulated stack, with the guard itself."""

import pytest

from tests.bench.main import main
from tests.late import require

pytestmark = pytest.mark.slow(seconds=90, reason="runs measurements on the simulated stack")


@pytest.mark.parametrize(
    ("suite", "name"),
    [
        ("broker", "clients"),
        ("broker", "guard_killed"),
        ("broker", "fault_parking"),
        ("sensors", "steady_cost"),
        ("hostile", "exec"),
        ("second_driver", "idle"),
        ("second_driver", "busy"),
        ("second_driver", "compiled"),
        ("triage", "newcomers"),
    ],
)
def test_a_measurement_holds_on_the_simulated_stack(suite: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = main([suite, "--simulated", "--quick", "--only", name, "--deadline", "120"])
    printed = capsys.readouterr()
    assert status == 0, printed.out + printed.err
    assert "SIMULATED" in printed.out


def test_no_way_to_attribute_an_sm_fault_accuses_an_innocent_there(capsys: pytest.CaptureFixture[str]) -> None:
    """No client can be named there: a simulated client writes no dump. The whole flow runs, and none is named."""
    # What takes longer than a test may, hangs: how busy the machine is plays no part in which client is accused.
    main(["sm", "--simulated", "--quick", "--only", "accuracy", "--deadline", "600"])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if line.startswith("false accusations")]
    assert [line.split()[-1] for line in lines] == ["yes"], printed


def test_a_start_is_repeated_there(capsys: pytest.CaptureFixture[str]) -> None:
    require("torch", "transformers")
    status = main(["start", "--simulated", "--quick", "--only", "fault", "--deadline", "240"])
    assert status == 0, capsys.readouterr().out


def test_no_token_is_lost_by_a_migration_there(capsys: pytest.CaptureFixture[str]) -> None:
    """How long the pause is there depends on what else the machine does."""
    require("torch")
    main(["checkpoint", "--simulated", "--quick", "--only", "migration", "--deadline", "240"])
    printed = capsys.readouterr().out
    lines = [line for line in printed.splitlines() if "tokens lost" in line]
    assert [line.split()[-1] for line in lines] == ["yes"], printed
