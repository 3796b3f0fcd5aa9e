"""What the running guard says of itself: doctor and status agree."""

import asyncio
from collections.abc import Iterator
from typing import Final

from mpsguard.cli.diagnosis.finding import Finding, note, ok, problem
from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.guard import Status
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.linux.extras import page

_WITHIN: Final = 15.0
"""Seconds for the guard's answer: it asks each control daemon, and waits 5 s for one that is silent."""


def problems(run_directory: str) -> Iterator[Finding]:
    """What `mpsguard-ctl status` shows as problems."""
    subject = "guard"
    try:
        status = asyncio.run(async_client.ask(run_directory, "status", NoArguments(), Status, _WITHIN))
    except NoAnswerError as error:
        yield note(subject, f"does not say how it is: {error}")
        return
    for each in status.problems:
        yield problem(subject, each, f"mpsguard-ctl status, and {page('docs/runbooks')}")
    if not status.problems:
        yield ok(subject, "healthy")
