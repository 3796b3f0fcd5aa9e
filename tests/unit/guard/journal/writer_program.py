"""Records numbered incidents as fast as it can; prints each one's id and number once it is acknowledged."""

import asyncio
import itertools
import sys
import time
from pathlib import Path

from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import JournalLimits
from tests.unit.guard.journal.incidents import fault, incident, xid


async def main(path: Path) -> None:
    journal = Journal.open(path, JournalLimits(incidents=100_000, evidence=1_000_000))
    print("open", flush=True)  # noqa: T201
    for number in itertools.count():
        now = time.monotonic()
        pieces = (fault(now, number), xid(now + 0.001, f"{number} " * 200))
        for piece in pieces:
            journal.record_evidence(piece)
        name = journal.record_incident(incident(*pieces, culprit=number, reason=str(number)))
        journal.record_decision(name, "numbered", str(number))
        journal.remember("last", str(number))
        if number % 7 == 0:
            await journal.flush()
            print(name, number, flush=True)  # noqa: T201


asyncio.run(main(Path(sys.argv[1])))
