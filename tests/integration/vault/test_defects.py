"""A defect of the vault with one client: the others are served on, and the log of the guard has the traceback."""

import asyncio
from typing import Any

import pytest

from mpsguard.linux.descriptors.fd_bundle import FdBundle
from mpsguard.vault.wire.errors import VaultError
from tests.harness.waiting import wait_for
from tests.integration.vault.running import LocalStorage, ThreadedVault


class Defective(LocalStorage):
    """A storage that raises what none may."""

    async def keep(self, _: str, bundle: FdBundle) -> None:
        bundle.kept.close()
        bundle.receipt.close()
        raise ZeroDivisionError


def test_it_is_counted_and_reported() -> None:
    reported: list[dict[str, Any]] = []
    with ThreadedVault(storage=Defective()) as vault:
        vault.call(
            lambda: asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        )
        with pytest.raises(VaultError):
            vault.session(deadline=0.5)
        wait_for("the report", lambda: reported)
        assert isinstance(reported[0]["exception"], ZeroDivisionError)
        # The client does not give up at once, and does not ask as often as it could.
        failed, reports = vault.call(lambda: (vault.vault.counters().refusals["failed"], len(reported)))
        assert failed == reports
        assert 2 < failed < 20
