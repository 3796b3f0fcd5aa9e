"""`[[domain.class]]`: the one line for each class that is wrong."""

import pytest

from mpsguard.config import ConfigError, parse

DOMAIN = """
[[domain]]
multiuser = true
[[domain.class]]
name = "a"
"""


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text.encode(), "f")
    return str(refused.value)


@pytest.mark.parametrize("pattern", ["*", "*/job_42/*", "/*/job_42", "job_42", "/", "/?ser.slice"])
def test_a_pattern_that_fits_below_what_users_make_is_refused(pattern: str) -> None:
    assert "domain[0].class[0].cgroups" in refusal(f"{DOMAIN}cgroups = ['{pattern}']")


@pytest.mark.parametrize("pattern", ["/kubepods*", "/system.slice/slurmstepd.scope/*"])
def test_a_pattern_of_a_level_at_the_root_is_taken(pattern: str) -> None:
    (domain,) = parse(f"{DOMAIN}cgroups = ['{pattern}']".encode(), "f").domain
    assert domain.classes[0].cgroups == (pattern,)
