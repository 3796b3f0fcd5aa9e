"""What becomes of evidence: it is written down, read again, judged and told of. None of that may fail."""

from collections.abc import Iterable

import msgspec

from fault_injection.fuzzing.surface import BrokenPromiseError
from mpsguard.guard.evidence import Evidence
from mpsguard.guard.triage.rolling import RollingTriage


def check(evidence: Iterable[Evidence], *, judge: bool) -> None:
    """Write down and read again, as the journal does; and judge, if so wished."""
    rolling = RollingTriage() if judge else None
    latest = 0.0
    for each in evidence:
        if msgspec.json.decode(msgspec.json.encode(each), type=Evidence) != each:
            raise BrokenPromiseError(f"the journal gives back something else than {each}")
        if rolling is not None:
            rolling.add(each)
            latest = max(latest, each.observed_at)
    if rolling is not None and latest:
        for after in (0.0, 1.0, 40.0):
            for change in rolling.judge(latest + after)[0]:
                msgspec.json.encode(change.incident)
