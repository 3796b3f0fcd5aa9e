"""A defect of the vault with one client: the others are served on, and the log of the guard has the traceback."""

import asyncio
import time
from typing import Any, Final

from mpsguard.linux.descriptors.fd_bundle import FdBundle
from tests.harness.waiting import wait_for
from tests.integration.vault.running import LocalStorage, ThreadedVault

TIMES: Final = 6
PAUSES: Final = 0.005 + 0.01 + 0.02 + 0.04 + 0.08
"""Seconds between the attempts of a client, the second of which is made at once."""


class Defective(LocalStorage):
    """A storage that raises what none may, some times."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def keep(self, name: str, bundle: FdBundle) -> None:
        self.asked += 1
        if self.asked > TIMES:
            await super().keep(name, bundle)
            return
        bundle.kept.close()
        bundle.receipt.close()
        raise ZeroDivisionError


def test_it_is_counted_and_reported() -> None:
    reported: list[dict[str, Any]] = []
    with ThreadedVault(storage=Defective()) as vault:
        vault.call(
            lambda: asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        )
        # The client does not give up at once, and does not ask as often as it could.
        began = time.monotonic()
        with vault.session():
            assert time.monotonic() - began >= PAUSES
        wait_for("the reports", lambda: len(reported) == TIMES)
        assert {type(each["exception"]) for each in reported} == {ZeroDivisionError}
        assert vault.call(lambda: vault.vault.counters().refusals["failed"]) == TIMES
    vault.storage.empty()
