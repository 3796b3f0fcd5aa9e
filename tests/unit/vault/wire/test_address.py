"""Which vault a client asks: the one that its environment names."""

import pytest

from mpsguard.vault.wire.address import DEFAULT_SOCKET, from_environment


@pytest.mark.parametrize(
    ("environment", "path"),
    [
        ({}, DEFAULT_SOCKET),
        ({"MPSGUARD_RUN_DIRECTORY": "/tmp/try/run"}, "/tmp/try/run/vault.sock"),
        ({"MPSGUARD_RUN_DIRECTORY": "/tmp/try/run", "MPSGUARD_VAULT": "/v"}, "/v"),
        ({"MPSGUARD_RUN_DIRECTORY": "", "MPSGUARD_VAULT": ""}, DEFAULT_SOCKET),
    ],
)
def test_the_environment_names_the_vault(environment: dict[str, str], path: str) -> None:
    assert from_environment(environment) == path
