"""Child processes of an event loop: their end within a deadline, and where they find this package."""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import mpsguard


async def wait_or_kill(child: asyncio.subprocess.Process, deadline: float) -> int:
    """Return the exit status of a child, which has ended in any case afterwards.

    Raises:
        TimeoutError: it had not ended within ``deadline`` seconds, and was killed.
    """
    try:
        async with asyncio.timeout(deadline):
            return await child.wait()
    finally:
        if child.returncode is None:
            with suppress(ProcessLookupError):
                child.kill()
            await child.wait()


def python_path(inherited: Mapping[str, str]) -> str:
    """Return PYTHONPATH for ``python -m mpsguard...`` in another directory: this package's own place comes first."""
    path = [str(Path(mpsguard.__file__).absolute().parents[1]), inherited.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, path))
