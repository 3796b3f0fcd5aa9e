"""All that the guard holds and a stranger can open for writing, or list: the stranger can hold its lock.

A system call that waits for that lock does not return as long as the stranger likes, and its thread keeps the process
from ending; an open that waits for a lease does so for 45 s (docs/concepts/security.md). So nothing is entered here
without the reason why no such call is made. `test_exposed_objects.py` finds what is missing.
"""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ExposedObject:
    """Something that a stranger may have open, too."""

    link: str
    """What /proc/PID/fd shows of it; a regular expression for the whole text."""
    why: str
    """Which calls the guard makes on it, and why they do not wait."""


EXPOSED: Final = (
    ExposedObject(
        r"/memfd:mpsguard-state \(deleted\)",
        "a session's state buffer, which its writer may write to. The guard writes to it before the writer has it "
        "(SessionFds.state_copies); then it makes copies, opens it for reading (without waiting for a lease) and reads "
        "it: pread of memory takes no lock",
    ),
    ExposedObject(
        r"/memfd:mpsguard-page \(deleted\)",
        "a session's page, which clients have for reading alone; the guard stores to it by a mapping, which takes none",
    ),
    ExposedObject(
        r"/memfd:mpsguard-manifest \(deleted\)",
        "goes to the descriptor storage alone, which is root's",
    ),
    ExposedObject(
        r"/memfd:mpsguard-zones \(deleted\)",
        "the table of a client under the preload, which is its own. The guard opens it for reading alone, on threads "
        "and without waiting for a lease, and reads it: pread of memory takes no lock",
    ),
    ExposedObject(
        r"/memfd:sentinel-core \(deleted\)",
        "a sentinel's core file; without -M it is another user's process. fstat and pread alone take no lock",
    ),
)
"""In the order of the parts that hold them."""


def reason(link: str) -> str | None:
    """Return why it is harmless that a stranger may have this open, too; None if that is not known."""
    return next((each.why for each in EXPOSED if re.fullmatch(each.link, link)), None)
