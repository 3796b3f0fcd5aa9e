"""A lane's settings: what a command asks for, whether it was taken, what is kept, what is replayed."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.lanes import settings
from mpsguard.guard.lanes.command import CommandReply
from mpsguard.guard.lanes.settings import Setting, SettingsStore
from mpsguard.guard.model import LaneSettings
from tests.spellings import Spelling, measured

ALL = LaneSettings(
    active_thread_percentage=50.0, client_priority=1, pinned_device_memory_limit={"0": "1G", "1": "512M"}
)

some_settings = st.builds(
    LaneSettings,
    active_thread_percentage=st.none() | st.integers(1, 100).map(float),
    client_priority=st.none() | st.sampled_from([0, 1]),
    pinned_device_memory_limit=st.dictionaries(
        st.sampled_from(["0", "1", "7"]), st.integers(1, 999).map(lambda n: f"{n}G"), max_size=3
    ),
)


def answer(text: str) -> CommandReply:
    return CommandReply((text,) if text else (), 0)


def test_the_replay_is_the_vendors_own_commands() -> None:
    assert settings.replay_commands(LaneSettings()) == []
    assert settings.replay_commands(ALL) == [
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 1G",
        "set_default_device_pinned_mem_limit 1 512M",
        "set_default_client_priority 1",
    ]


@given(some_settings)
def test_what_is_replayed_is_what_was_kept(wanted: LaneSettings) -> None:
    """A daemon that takes every command has all of the settings again."""
    found = LaneSettings()
    for command in settings.replay_commands(wanted):
        asked = settings.asked_by(command)
        assert asked is not None
        assert settings.was_taken(asked, answer("50.0" if "percentage" in command else ""))
        found = settings.with_setting(found, asked)
    assert found == wanted


@pytest.mark.parametrize(
    ("command", "asked"),
    [
        ("set_default_active_thread_percentage 50", Setting("active_thread_percentage", "50")),
        ("set_default_active_thread_percentage\t50% 60", Setting("active_thread_percentage", "50%")),
        ("  set_default_client_priority 1", Setting("client_priority", "1")),
        ("set_default_client_priority", Setting("client_priority", "")),
        ("set_default_device_pinned_mem_limit 0 1G", Setting("device_pinned_mem_limit", "1G", "0")),
        ("set_default_device_pinned_mem_limit 01 2GB\r", Setting("device_pinned_mem_limit", "2GB", "1")),
        ("set_default_device_pinned_mem_limit", Setting("device_pinned_mem_limit", "", "0")),
        ("set_default_device_pinned_mem_limit 0=2G", Setting("device_pinned_mem_limit", "=2G", "0")),
        ("set_default_device_pinned_mem_limit GPU-1a 2G", Setting("device_pinned_mem_limit", "2G", "GPU-1a")),
        ("set_default_device_pinned_mem_limit GPU-\udcff 2G", Setting("device_pinned_mem_limit", "", "0")),
        ("set_default_device_pinned_mem_limit 32 2G", None),
        ("set_active_thread_percentage 479 80", Setting("active_thread_percentage", "80", server=479)),
        ("set_active_thread_percentage 479x 80", Setting("active_thread_percentage", "x", server=479)),
        ("set_active_thread_percentage", Setting("active_thread_percentage", "", server=0)),
        ("set_device_pinned_mem_limit 479 1 2T", Setting("device_pinned_mem_limit", "2T", "1", 479)),
        ("set_device_pinned_mem_limit 479", Setting("device_pinned_mem_limit", "", "0", 479)),
        ("get_default_active_thread_percentage", None),
        ("set_default_active_thread_percentage\u00a050", None),
        ("ps", None),
        ("", None),
    ],
)
def test_what_a_command_asks_for(command: str, asked: Setting | None) -> None:
    assert settings.asked_by(command) == asked
    assert settings.moves_lever(command) or asked is None


@pytest.mark.parametrize(
    ("command", "said", "taken"),
    [
        ("set_default_active_thread_percentage 33.333", "33.3", True),
        ("set_default_active_thread_percentage 0.01", "0.0", True),
        ("set_default_active_thread_percentage 50%", "50.0", True),
        # The old value is shown, without a word.
        ("set_default_active_thread_percentage 150", "100.0", False),
        ("set_default_active_thread_percentage 100.05", "100.0", False),
        ("set_default_active_thread_percentage much", "100.0", False),
        ("set_default_active_thread_percentage nan", "100.0", False),
        ("set_default_active_thread_percentage", "100.0", False),
        ("set_default_client_priority 7", "Invalid priority value - must be 0 or 1!", False),
        ("set_default_client_priority 7", "", False),
        ("set_default_client_priority 0", "", True),
        ("set_default_client_priority normal", "", True),
        ("set_default_client_priority 1", 'Unknown command "set_default_client_priority"', False),
        ("set_default_client_priority 1", "Insufficient privileges for UID 1000. Control deamon settings ...", False),
        ("set_default_device_pinned_mem_limit 0 1.5G", "", True),
        ("set_default_device_pinned_mem_limit 0", "", True),
        ("set_default_device_pinned_mem_limit 0 20389M", "", True),
        ("set_default_device_pinned_mem_limit 0 1G", "Insufficient privileges for UID 1000", False),
        ("set_device_pinned_mem_limit 1 0 1G", "Server 1 not found", False),
        ("set_device_pinned_mem_limit 1 0 1G", "Server 1 is <busy>", False),
        ("set_active_thread_percentage 1 50", "50.0", True),
    ],
)
def test_whether_the_daemon_has_taken_it(command: str, said: str, taken: bool) -> None:
    asked = settings.asked_by(command)
    assert asked is not None
    assert settings.was_taken(asked, answer(said)) is taken


@pytest.mark.parametrize("row", [row for row in measured() if row.shown is not None], ids=lambda row: row.arguments)
def test_what_was_taken_is_kept_so_that_its_replay_shows_the_same(row: Spelling) -> None:
    asked = settings.asked_by(f"set_default_{row.setting} {row.arguments}")
    if asked is None:
        assert not row.shown
        return
    kept = settings.with_setting(ALL, asked)
    replayed = [each for line in settings.replay_commands(kept) if (each := settings.asked_by(line)) is not None]
    (again,) = [each for each in replayed if (each.name, each.device) == (asked.name, asked.device)]
    assert again.levers == asked.levers


def test_a_limit_is_kept_in_its_own_words_and_the_last_one_comes_last() -> None:
    kept = LaneSettings()
    for text in ("0 20389M", "1 2GB", "0 4606M", "1 3G\udcff", "7 " + "9" * 100):
        asked = settings.asked_by(f"set_default_device_pinned_mem_limit {text}")
        assert asked is not None
        kept = settings.with_setting(kept, asked)
    # What no file would take is kept in other words.
    most = f"{(1 << 44) - 1}M"
    assert list(kept.pinned_device_memory_limit.items()) == [("0", "4606M"), ("1", "3G"), ("7", most)]


@pytest.mark.parametrize(
    ("lines", "shown"),
    [(("3G",), True), (("900M",), True), ((), False), (("No default pinned memory limit set!",), False)],
)
def test_a_limit_or_none(lines: tuple[str, ...], shown: bool) -> None:
    assert settings.shows_limit(CommandReply(lines, 0)) is shown


def test_what_a_daemon_has_that_was_never_asked_for() -> None:
    shown = dict.fromkeys(settings.QUERIES, ()) | {
        "get_default_active_thread_percentage": ("40.0",),
        "get_default_client_priority": ("0",),
        "get_default_device_pinned_mem_limit 0": ("1G",),
        "get_default_device_pinned_mem_limit 3": ("19G",),
        "get_default_device_pinned_mem_limit 4": ("No default pinned memory limit set for the device!",),
    }
    kept = LaneSettings(pinned_device_memory_limit={"0": "1536M"})
    assert settings.unasked(kept, shown) == {"active_thread_percentage": "40.0", "device_pinned_mem_limit 3": "19G"}
    assert settings.unasked(ALL, shown) == {"device_pinned_mem_limit 3": "19G"}


def test_the_store_outlives_the_guard_and_yields_to_a_new_configuration(tmp_path: Path) -> None:
    path = tmp_path / "lanes" / "default-0.json"
    configured = LaneSettings(active_thread_percentage=70.0)
    assert SettingsStore(path, configured).load() == configured
    SettingsStore(path, configured).save(ALL)
    assert SettingsStore(path, configured).load() == ALL
    changed = LaneSettings(active_thread_percentage=30.0)
    assert SettingsStore(path, changed).load() == changed


@given(garbage=st.binary(max_size=200))
def test_a_damaged_store_is_as_good_as_none(tmp_path_factory: pytest.TempPathFactory, garbage: bytes) -> None:
    path = tmp_path_factory.mktemp("store") / "x.json"
    path.write_bytes(garbage)
    assert isinstance(SettingsStore(path, ALL).load(), LaneSettings)
