"""Shares of single programs: what `mpsguard-ctl resize` sets for all processes of one that come from then on."""

from collections.abc import Iterable
from pathlib import Path

import msgspec

from mpsguard.linux.files import file_replacement


class ProgramShare(msgspec.Struct, frozen=True):
    """Percent of the SMs for a program: a user's word in ``MPSGUARD_PROGRAM``, the same for all its processes."""

    uid: int
    program: str
    share: float


class ProgramShares:
    """The shares of one domain's programs, on disk: the next standby of a program comes after the next guard, too."""

    def __init__(self, path: Path) -> None:
        """``path`` is the file; without it, or if it cannot be read, there are none."""
        self._path = path
        self._shares: dict[tuple[int, str], float] = {}
        try:
            known = msgspec.json.decode(path.read_bytes(), type=tuple[ProgramShare, ...])
        except (OSError, msgspec.DecodeError):
            return
        self._shares = {(each.uid, each.program): each.share for each in known}

    def __len__(self) -> int:
        return len(self._shares)

    def of(self, uid: int, program: str | None) -> float | None:
        """Return the share of a user's program; None if it has none of its own."""
        return None if program is None else self._shares.get((uid, program))

    def set(self, wanted: ProgramShare, living: Iterable[tuple[int, str | None]]) -> None:
        """Give a program a share, and forget programs of which no process is ``living`` (uid and program).

        Raises OSError if it cannot be written down; nothing has changed then.
        """
        kept = set(living)
        shares = {key: share for key, share in self._shares.items() if key in kept}
        shares[wanted.uid, wanted.program] = wanted.share
        rows = [ProgramShare(uid, program, share) for (uid, program), share in shares.items()]
        file_replacement.replace(self._path, msgspec.json.encode(rows))
        self._shares = shares
