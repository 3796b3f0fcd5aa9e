"""Two transcripts of the same observations are the same."""

from examples.demo.masks import masked

PRINTED = """\
mpsguard 0.1.0 healthy for 12s
LANE      CONTROL  AGE  PIPE DIRECTORY
──────────────────────────────────────────────
suite-0   4711     12s  /tmp/a-private-one/pub"""


def test_what_differs_between_runs_is_masked_in_place() -> None:
    assert masked(PRINTED, [4711], "/tmp/a-private-one").splitlines() == [
        "mpsguard 0.1.0 healthy for Ns ",
        "LANE      CONTROL  AGE  PIPE DIRECTORY",
        "──────────────────────────────────────",
        "suite-0   PID      Ns   DIR/pub",
    ]


def test_a_pid_inside_another_word_stays() -> None:
    assert masked("suite-0 v1.0 0 10", [0, 1], "/nowhere") == "suite-0 v1.0 P 10".replace("P", "PID")
