"""The guard reads a setting's value as the control daemon does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard import mps_values
from tests.spellings import Spelling, measured


def shown(row: Spelling) -> str | None:
    """What our reading of a value amounts to, in the daemon's words."""
    first = mps_values.words(row.arguments)[0]
    match row.setting:
        case "active_thread_percentage":
            share = mps_values.percentage(first)
            return None if share is None else f"{share:.1f}"
        case "client_priority":
            priority = mps_values.priority(first)
            return None if priority is None else str(priority)
    # The query reads a device in the same way.
    taken, asked = mps_values.memory_limit(row.arguments), mps_values.memory_limit(row.device)
    limit = mps_values.limit_bytes(taken[1]) if taken is not None and asked is not None else 0
    return mps_values.shown_limit(limit) if limit else ""


@pytest.mark.parametrize("row", measured(), ids=lambda row: f"{row.setting} {row.arguments!r}")
def test_a_value_is_read_as_the_daemon_reads_it(row: Spelling) -> None:
    assert shown(row) == row.shown


@given(st.integers(0, (1 << 44) - 1).map(lambda mib: mib << 20))
def test_a_limit_in_our_words_is_that_limit(limit: int) -> None:
    assert mps_values.limit_bytes(mps_values.limit_text(limit)) == limit


@given(st.text(alphabet="+-0123456789xXaAeEgGmM.nif %\t", max_size=30))
def test_no_text_is_more_than_one_value(text: str) -> None:
    share = mps_values.percentage(text)
    assert share is None or 0 < share <= 100
    assert mps_values.priority(text) in (None, 0, 1)
    assert 0 <= mps_values.limit_bytes(text) < 1 << 64
    taken = mps_values.memory_limit(text)
    assert taken is None or 0 <= taken[0] < mps_values.DEVICES


@given(st.floats(0, 100, exclude_min=True))
def test_a_percentage_in_our_words_is_that_number(value: float) -> None:
    assert mps_values.percentage(mps_values.percentage_text(value)) == value


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ("0 3G", (0, "3G")),
        ("  1\t3G 4G", (1, "3G")),
        ("", (0, "")),
        ("GPU-8f6d4b52-1234 3G", (0, "")),
        ("0=3G", (0, "=3G")),
        ("1x 3G", (1, "x")),
        ("-0 3G", (0, "3G")),
        ("4294967297 3G", (1, "3G")),
        ("32 3G", None),
        ("-1 3G", None),
        ("9" * 5000 + " 3G", None),
        ("\u00a00 3G", (0, "")),
    ],
)
def test_device_and_limit_of_a_command(arguments: str, taken: tuple[int, str] | None) -> None:
    assert mps_values.memory_limit(arguments) == taken


@pytest.mark.parametrize("text", ["9" * 5000, "0x1p99999", "0" * 5000 + "7", "1e99999", "-" + "9" * 5000])
def test_no_text_is_too_long_to_be_read(text: str) -> None:
    mps_values.percentage(text)
    mps_values.priority(text)
    mps_values.limit_bytes(text)
