"""A guard with long passes of its event loop, as while users flood it; counts them in the file of variable PASSES."""

import asyncio
import mmap
import os
import struct
import time
from typing import Any, cast

from mpsguard.cli.guard import main

PASS = 0.05
"""Seconds; whatever others have to do for a handshake is done before the next pass begins."""


def count(path: str) -> None:
    with open(path, "r+b") as file:
        page = mmap.mmap(file.fileno(), 8)
    loop = cast("Any", asyncio.BaseEventLoop)
    run_once = loop._run_once

    def run_later(self: asyncio.BaseEventLoop) -> None:
        time.sleep(PASS)
        struct.pack_into("Q", page, 0, struct.unpack("Q", page)[0] + 1)
        run_once(self)

    loop._run_once = run_later


if __name__ == "__main__":
    count(os.environ["PASSES"])
    main()
