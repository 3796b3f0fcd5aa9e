"""`[[domain.class]]`: the one line for each class that is wrong."""

import pytest

from mpsguard.guard.config import ConfigError, parse

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


LIFTED = """
[[domain]]
multiuser = true
[[domain.class]]
name = "batch"
sm_share = 40
priority = "below_normal"
memory_limit = { 0 = "2G" }
lifted = "less"
[[domain.class]]
name = "less"
"""
SAME = {"sm_share": "40", "priority": "'below_normal'", "memory_limit": "{ 0 = '2048M', 1 = '1G' }"}


def lifted(**changed: str | None) -> str:
    values = {key: value for key, value in {**SAME, **changed}.items() if value is not None}
    return LIFTED + "".join(f"{key} = {value}\n" for key, value in values.items())


@pytest.mark.parametrize(
    "changed",
    [
        {"sm_share": "41"},
        {"sm_share": None},
        {"priority": "'normal'"},
        {"priority": None},
        {"memory_limit": "{ 0 = '3G' }"},
        {"memory_limit": "{ 1 = '1G' }"},
    ],
)
def test_a_client_that_lifts_itself_must_not_gain_by_it(changed: dict[str, str | None]) -> None:
    said = refusal(lifted(**changed))
    assert ("domain[0].class[0].lifted" in said, "'less'" in said) == (True, True)


def test_the_class_for_such_clients_may_give_as_much_or_less() -> None:
    assert parse(lifted().encode(), "f").domain[0].classes[0].lifted == "less"
    assert parse(lifted(sm_share="10").encode(), "f").domain[0].classes[0].lifted == "less"


def test_nor_may_it_escape_the_end_of_a_client_beyond_its_memory() -> None:
    ends = 'memory_over = "terminate"\n'
    strict = LIFTED.replace('lifted = "less"\n', 'lifted = "less"\n' + ends)
    values = "".join(f"{key} = {value}\n" for key, value in SAME.items())
    assert "memory_over" in refusal(strict + values)
    assert parse((strict + values + ends).encode(), "f").domain[0].classes[1].memory_over == "terminate"


@pytest.mark.parametrize("name", ["batch", "none", "standby"])
def test_it_must_be_another_class_of_the_domain(name: str) -> None:
    assert "is none of refuse, less" in refusal(lifted().replace('lifted = "less"', f'lifted = "{name}"'))


@pytest.mark.parametrize(
    ("keys", "places"),
    [
        ("", None),
        ("max_clients = 5", 3),
        ("max_clients = 1", 1),
        ("max_clients = 5\nmax_clients_per_user = 5", 5),
        ("max_clients_per_user = 2", 2),
        ("max_clients = 5\nuids = [1001]", 5),
        ("max_clients = 5\nuids = [1001]\nchoosers = [1001]", 5),
        ("max_clients = 5\nuids = [1001]\nchoosers = [1002]", 3),
        ("max_clients = 5\nuids = [1001]\nchoosers = 'anyone'", 3),
        ("max_clients = 5\nuids = [1001]\ndefault = true", 3),
        ("max_clients = 5\nuids = [1001, 1002]", 3),
    ],
)
def test_one_user_does_not_take_all_places_that_others_may_have(keys: str, places: int | None) -> None:
    assert parse(f"{DOMAIN}{keys}".encode(), "f").domain[0].classes[0].places_of_a_user == places


def test_a_user_cannot_have_more_places_than_there_are() -> None:
    assert "class[0].max_clients_per_user: 3 is more" in refusal(f"{DOMAIN}max_clients = 2\nmax_clients_per_user = 3")
