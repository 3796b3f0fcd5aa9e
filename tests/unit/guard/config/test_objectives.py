"""`[[domain.objective]]`: what is read, and the one line for each wrong value."""

import pytest

from mpsguard.guard.config import ConfigError, Objective, parse

CLASSES = """
[[domain]]
multiuser = true
[[domain.class]]
name = "critical"
[[domain.class]]
name = "batch"
sm_share = 60
[[domain.class]]
name = "rest"
"""
OBJECTIVE = """
[[domain.objective]]
class = "critical"
p99_ms = 4
batch = "batch"
"""


def test_an_objective_needs_three_values() -> None:
    (domain,) = parse((CLASSES + OBJECTIVE).encode(), "f").domain
    assert domain.objectives == (Objective("critical", 4.0, "batch"),)
    assert domain.objectives[0].mode == "observe"


@pytest.mark.parametrize(
    ("added", "line"),
    [
        (
            "[[domain.objective]]\nclass = 'critical'\nbatch = 'batch'",
            "domain[0].objective[0].p99_ms: is missing",
        ),
        (OBJECTIVE.replace("critical", "best"), "domain[0].objective[0].class: the domain has no class 'best'; it has"),
        (OBJECTIVE.replace('"batch"', '"other"'), "domain[0].objective[0].batch: the domain has no class 'other'"),
        (
            OBJECTIVE.replace('"batch"', '"critical"'),
            "domain[0].objective[0].batch: 'critical' has an objective",
        ),
        (OBJECTIVE + OBJECTIVE, "domain[0].objective[0].class: 'critical' stands in two objectives of the domain"),
        (
            OBJECTIVE + OBJECTIVE.replace("critical", "rest").replace('"batch"', '"critical"'),
            "domain[0].objective[1].batch: 'critical' has an objective itself",
        ),
        (
            OBJECTIVE + "least_share = 50\nmost_share = 40",
            "domain[0].objective[0].least_share: 50 is more than most",
        ),
        (OBJECTIVE + "least_share = 70", "domain[0].objective[0].least_share: 70 is more than class batch has, 60"),
        (OBJECTIVE + "mode = 'on'", "domain[0].objective[0].mode: 'on' is none of off, observe, enforce"),
        (OBJECTIVE + "p99 = 3", "domain[0].objective[0].p99: unknown key; allowed here: class, p99_ms, batch, mode"),
        (OBJECTIVE.replace("4", "0"), "domain[0].objective[0].p99_ms: must be above 0"),
        (OBJECTIVE + "calm_below = 1.0", "domain[0].objective[0].calm_below: must be below 1"),
        (OBJECTIVE + "[vault]\nenabled = false", "domain[0].objective: requests are counted in the vault"),
    ],
)
def test_what_is_wrong_is_one_line(added: str, line: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse((CLASSES + added).encode(), "f")
    said = str(error.value)
    assert said.startswith(f"f: {line}")
    assert "\n" not in said
