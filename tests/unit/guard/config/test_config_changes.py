"""Which keys of two configurations differ, and which of them need a restart."""

from __future__ import annotations

import msgspec
import pytest

from mpsguard.guard import config
from mpsguard.guard.config.changes import LIVE

OLD = """
[guard]
log_level = "info"
[[domain]]
name = "a"
[[domain]]
name = "b"
pipe_directory = "/run/b"
gpus = ["1"]
"""


def parsed(text: str) -> config.Config:
    return config.parse(text.replace('name = "a"', 'name = "a"\ngpus = ["0"]', 1).encode(), "a file")


@pytest.mark.parametrize(
    ("before", "after", "keys", "restart"),
    [
        ("", "", (), ()),
        ('"info"', '"debug"', ("guard.log_level",), ()),
        ('log_level = "info"', 'group = "gpu"', ("guard.group",), ("guard.group",)),
        ('"b"', '"c"', ("domain",), ("domain",)),
        ('["1"]', '["2"]', ("domain[b].gpus",), ("domain[b].gpus",)),
        (
            '["1"]',
            '["1"]\n[domain.policy]\nmax_parked = 7\nstart_deadline = 7.0',
            ("domain[b].policy.max_parked", "domain[b].policy.start_deadline"),
            ("domain[b].policy.start_deadline",),
        ),
        ('["1"]', '["1"]\n[domain.lifelines]\ncrash_hold = 0.0', ("domain[b].lifelines.crash_hold",), ()),
        ('["1"]', '["1"]\n[domain.remedies]\nmmu = []', ("domain[b].remedies.mmu",), ()),
        (
            '["1"]',
            '["1"]\nmultiuser = true\n[[domain.class]]\nname = "x"',
            ("domain[b].multiuser", "domain[b].class"),
            ("domain[b].multiuser", "domain[b].class"),
        ),
        ("[guard]", "[vault]\nenabled = false\n[guard]", ("vault.enabled",), ("vault.enabled",)),
    ],
)
def test_changes(before: str, after: str, keys: tuple[str, ...], restart: tuple[str, ...]) -> None:
    found = config.changed_keys(parsed(OLD), parsed(OLD.replace(before, after, 1) if before else OLD))
    assert found == keys
    assert config.needing_restart(found) == restart


def test_every_live_key_is_a_key() -> None:
    types = {name.replace("[]", ""): kind for name, kind in config.sections().items()}
    for key in LIVE:
        section, _, name = key.rpartition(".")
        assert name == "*" or name in types[section].__struct_encode_fields__


def test_what_was_loaded_twice_is_the_same() -> None:
    again = msgspec.convert(msgspec.to_builtins(config.Config()), type=config.Config)
    assert config.changed_keys(config.Config(), again) == ()
