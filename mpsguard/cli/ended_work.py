"""Requests to the guard to end the GPU work of a program's processes, for what supervises the program."""

from collections.abc import Sequence
from typing import Final

from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.clients import EndWorkArguments, EndWorkResult
from mpsguard.guard.model import Work
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import process_tree
from mpsguard.vault.supervisor.guard_client import ClientWork, EndWork, GuardSilentError

_MARGIN: Final = 0.5
"""Seconds the guard may take beyond the control daemon."""


def end_work_by(run_directory: str, within: float) -> EndWork:
    """Return a request to a guard by its run directory; the control daemon gets ``within`` seconds."""

    async def ask(processes: Sequence[ProcessKey], /) -> Sequence[ClientWork]:
        namespace = process_tree.pid_namespace()
        assert namespace is not None
        arguments = EndWorkArguments(tuple(processes), namespace, within)
        try:
            result = await async_client.ask(run_directory, "end_work", arguments, EndWorkResult, within + _MARGIN)
        except NoAnswerError as error:
            raise GuardSilentError(str(error)) from None
        return [
            ClientWork(each.process, each.work is Work.ENDED, each.work.in_flight, each.answer)
            for each in result.clients
        ]

    return ask
