"""A lane's settings: what is replayed, what a command touches, what is believed when it is read back."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.lanes import settings
from mpsguard.lanes.settings import Setting
from mpsguard.lanes.settings_store import SettingsStore
from mpsguard.model import LaneSettings

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


def test_the_replay_is_the_vendors_own_commands() -> None:
    assert settings.replay_commands(LaneSettings()) == []
    assert settings.replay_commands(ALL) == [
        "set_default_active_thread_percentage 50",
        "set_default_device_pinned_mem_limit 0 1G",
        "set_default_device_pinned_mem_limit 1 512M",
        "set_default_client_priority 1",
    ]


@given(some_settings)
def test_what_is_replayed_and_read_back_is_what_was_kept(wanted: LaneSettings) -> None:
    """A daemon that takes every command and answers every query brings the settings back whole."""
    held: dict[str, str] = {}
    found = LaneSettings()
    for command in settings.replay_commands(wanted):
        setting = settings.setting_touched_by(command)
        assert setting is not None
        held[setting.query] = command.split()[-1]
        assert settings.was_taken(setting, (held[setting.query],))
        found = settings.with_read_back(found, setting, (held[setting.query],))
    assert found == wanted


@pytest.mark.parametrize(
    ("command", "touched"),
    [
        ("set_default_active_thread_percentage 50", Setting("active_thread_percentage", asked="50")),
        ("  set_default_client_priority 1", Setting("client_priority", asked="1")),
        ("set_default_device_pinned_mem_limit 0 1G", Setting("device_pinned_mem_limit", "0", "1G")),
        ("set_active_thread_percentage 479 80", None),
        ("get_default_active_thread_percentage", None),
        ("ps", None),
        ("", None),
    ],
)
def test_only_defaults_are_kept(command: str, touched: Setting | None) -> None:
    assert settings.setting_touched_by(command) == touched


@pytest.mark.parametrize(
    ("command", "shown", "taken"),
    [
        ("set_default_active_thread_percentage 150", "100.0", False),
        ("set_default_active_thread_percentage 33.333", "33.3", True),
        ("set_default_active_thread_percentage much", "100.0", False),
        ("set_default_client_priority 7", "0", False),
        ("set_default_client_priority 0", "0", True),
        ("set_default_device_pinned_mem_limit 0 1T", "2G", False),
        ("set_default_device_pinned_mem_limit 0", "2G", False),
        ("set_default_device_pinned_mem_limit 0 2048M", "2G", True),
        ("set_default_device_pinned_mem_limit 7 2G", "No default pinned memory limit set for the device!", False),
    ],
)
def test_what_the_daemon_does_not_show_was_refused(command: str, shown: str, taken: bool) -> None:
    setting = settings.setting_touched_by(command)
    assert setting is not None
    assert settings.was_taken(setting, (shown,)) is taken


@pytest.mark.parametrize("answer", [(), ("",), ("nan",), ("0",), ("101",), ("Insufficient privileges",)])
def test_an_answer_that_is_no_value_changes_nothing(answer: tuple[str, ...]) -> None:
    for name in ("active_thread_percentage", "device_pinned_mem_limit"):
        assert settings.with_read_back(ALL, Setting(name, "0"), answer) == ALL


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
