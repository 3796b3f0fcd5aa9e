"""The configuration: what is wrong is said in one line, with file, key and what is allowed."""

import os
from pathlib import Path

import pytest

from mpsguard.guard import config
from mpsguard.guard.config import Config, ConfigError, DomainConfig


def test_the_defaults_are_valid_without_a_file() -> None:
    settings = config.parse(b"", "empty.toml")
    assert settings == Config()
    assert settings.domain[0].pipe_directory == "/run/nvidia-mps"


def test_a_whole_file_is_understood() -> None:
    settings = config.parse(
        b"""
        [guard]
        run_directory = "/run/elsewhere"
        group = "gpu"
        [[domain]]
        name = "a"
        pipe_directory = "/run/a"
        gpus = ["0", "GPU-8335189a-105a-3028-2955-a4502c0072d1"]
        multiuser = true
        [domain.settings]
        active_thread_percentage = 50
        client_priority = 1
        [domain.settings.pinned_device_memory_limit]
        0 = "8G"
        [domain.policy]
        park_deadline = 5
        [[domain]]
        name = "b"
        pipe_directory = "/run/b"
        gpus = ["1"]
        """,
        "whole.toml",
    )
    assert [domain.name for domain in settings.domain] == ["a", "b"]
    assert settings.domain[0].settings.pinned_device_memory_limit == {"0": "8G"}
    assert settings.domain[0].policy.park_deadline == 5.0


@pytest.mark.parametrize(
    ("text", "key", "allowed"),
    [
        ("x = 1", "x:", "guard, domain"),
        ("[guard]\nfoo = 1", "guard.foo:", "run_directory"),
        ("[guard]\nlog_level = 'loud'", "guard.log_level:", "debug, info, warning, error"),
        ("[guard]\nrun_directory = 'here'", "guard.run_directory:", "absolute"),
        ("[guard]\nmetrics_address = '9400'", "guard.metrics_address:", "HOST:PORT"),
        ("[guard]\nmetrics_address = 'x:70000'", "guard.metrics_address:", "65535"),
        ("[guard]\nmetrics_names = ['x:70000']", "guard.metrics_names:", "without a port"),
        ("domain = []", "domain:", "at least one"),
        ("[guard]\nsimulated_driver = true\n[[domain]]", "guard.simulated_driver:", "simulated = true"),
        ("[[domain]]\nnam = 'a'", "domain[0].nam:", "pipe_directory"),
        ("[[domain]]\nname = 'A B'", "domain[0].name:", "1 to 32 of a-z"),
        ("[[domain]]\npipe_directory = 'mps'", "domain[0].pipe_directory:", "absolute"),
        (f"[[domain]]\npipe_directory = '/{'a' * 100}'", "domain[0].pipe_directory:", "107"),
        ("[[domain]]\npipe_directory = '/run/mpsguard/x'", "domain[0].pipe_directory:", "not lie inside"),
        ("[[domain]]\ngpus = 'all'", "domain[0].gpus:", "a list, not text"),
        ("[[domain]]\ngpus = []", "domain[0].gpus:", "all"),
        ("[[domain]]\ngpus = ['all', '0']", "domain[0].gpus:", "alone"),
        ("[[domain]]\ngpus = ['0', '0']", "domain[0].gpus:", "twice"),
        ("[[domain]]\n[[domain]]\nname='b'\npipe_directory='/x'", "domain[1].gpus:", "one domain only"),
        ("[[domain]]\ngpus = ['first']", "domain[0].gpus:", "UUID"),
        ("[[domain]]\nmultiuser = 'yes'", "domain[0].multiuser:", "true or false"),
        ("[[domain]]\n[domain.policy]\nparky = 1", "domain[0].policy.parky:", "park_deadline"),
        ("[[domain]]\n[domain.policy]\nmax_parked = 0", "domain[0].policy.max_parked:", "at least 1"),
        ("[[domain]]\n[domain.policy]\npark_deadline = -1", "domain[0].policy.park_deadline:", "above 0"),
        ("[[domain]]\n[domain.settings]\nshare = 1", "domain[0].settings.share:", "active_thread_percentage"),
        (
            "[[domain]]\n[domain.settings]\nactive_thread_percentage = 101",
            "domain[0].settings.active_thread_percentage:",
            "at most 100",
        ),
        ("[[domain]]\n[domain.settings]\nclient_priority = 7", "domain[0].settings.client_priority:", "0 (normal)"),
        (
            "[[domain]]\n[domain.settings.pinned_device_memory_limit]\n0 = '1T'",
            "domain[0].settings.pinned_device_memory_limit.0:",
            "G or M",
        ),
        (
            "[[domain]]\n[domain.settings.pinned_device_memory_limit]\nall = '1G'",
            "domain[0].settings.pinned_device_memory_limit:",
            "UUID",
        ),
        ("[[domain]]\n[[domain.class]]\nname = 'a'\npriority = 'high'", "domain[0].class[0].priority:", "below_normal"),
        ("[[domain]]\n[[domain.class]]\nname = 'a'\nchoosers = 'everyone'", "domain[0].class[0].choosers:", "anyone"),
        ("[[domain]]\n[[domain.class]]\nname = 'a'\nsm_share = 0.04", "domain[0].class[0].sm_share:", "at least 0.1"),
        ("[[domain]]\n[[domain.class]]", "domain[0].class[0].name:", "missing"),
        ("[[domain]]\n[[domain.class]]\nname = 'A b'", "domain[0].class[0].name:", "1 to 32 of a-z"),
        ("[[domain]]\n[[domain.class]]\nname = 'a'\nslurm_jobs = ['x']", "slurm_jobs", "a whole number, not text"),
        ("[[domain]]\n[[domain.class]]\nname = 'a'\nchoosers = 3", "choosers:", "text or a list, not a whole number"),
        ("[[domain]]\n[[domain]]", "domain.name:", "each needs its own"),
        ("[[domain]]\nname = 'a'\n[[domain]]\nname = 'b'", "domain.pipe_directory:", "each needs its own"),
        ("=", "not valid TOML", ""),
    ],
)
def test_a_mistake_is_one_line_with_file_key_and_what_is_allowed(text: str, key: str, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.parse(text.encode(), "bad.toml")
    line = str(caught.value)
    assert line.startswith("bad.toml: ")
    assert "\n" not in line
    assert key in line
    assert allowed in line


def test_bytes_that_are_no_text_are_a_mistake_too() -> None:
    with pytest.raises(ConfigError):
        config.parse(b"\xff\xfe", "bad.toml")


def test_our_program_of_the_vendors_name_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands before the vendor's on PATH where a site has it; as a lane it would start a guard for itself."""
    name = "nvidia-cuda-mps-control"
    texts = {
        "ours": "#!/usr/bin/python3\nfrom mpsguard.guard.dropin.control_program import main\n",
        "theirs": "\x7fELF",
    }
    for place, text in texts.items():
        (tmp_path / place).mkdir()
        (tmp_path / place / name).write_text(text)
        (tmp_path / place / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'ours'}{os.pathsep}{tmp_path / 'theirs'}")
    assert config.find_control_binary(DomainConfig()) == str(tmp_path / "theirs" / name)
    monkeypatch.setenv("PATH", str(tmp_path / "ours"))
    with pytest.raises(ConfigError, match="control_binary"):
        config.find_control_binary(DomainConfig())
