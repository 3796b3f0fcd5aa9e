"""Shares below that of a class: what objectives leave to it now, and what `mpsguard-ctl resize` gives a program."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from mpsguard.linux.files.directory import replace_file


class ClassCeilings:
    """The ceilings of one domain's classes; a class with several has the least of them."""

    def __init__(self) -> None:
        self._ceilings: dict[tuple[str, str], float] = {}

    def set(self, service_class: str, owner: str, share: float) -> None:
        """Set the ceiling of ``service_class`` in percent of the SMs on behalf of ``owner``; 100: none."""
        if share >= 100:
            self._ceilings.pop((service_class, owner), None)
        else:
            self._ceilings[service_class, owner] = share

    def of(self, service_class: str | None) -> float | None:
        """Return the ceiling of a class; None if it has none."""
        shares = [share for (name, _), share in self._ceilings.items() if name == service_class]
        return min(shares, default=None)


class ProgramShare(msgspec.Struct, frozen=True):
    """Percent of the SMs for a program: a user's word in ``MPSGUARD_PROGRAM``, the same for all its processes."""

    uid: int
    program: str
    share: float


class TrialError(Exception):
    """A program has a share on trial already."""


class ProgramShares:
    """The shares of one domain's programs, on disk: the next standby of a program comes after the next guard, too.

    A share is on trial until a process that has it is about to go on. It is not on disk until then, so that a resize
    that fails, or ends with the guard, leaves nothing behind.
    """

    def __init__(self, path: Path) -> None:
        """``path`` is the file; without it, or if it cannot be read, there are none."""
        self._path = path
        self._shares: dict[tuple[int, str], float] = {}
        self._on_trial: dict[tuple[int, str], float] = {}
        try:
            known = msgspec.json.decode(path.read_bytes(), type=tuple[ProgramShare, ...])
        except (OSError, msgspec.DecodeError):
            return
        self._shares = {(each.uid, each.program): each.share for each in known}

    def __len__(self) -> int:
        return len(self._shares) + len(self._on_trial)

    def of(self, uid: int, program: str | None) -> float | None:
        """Return the share of a user's program for a process that comes now; None if it has none of its own."""
        if program is None:
            return None
        key = (uid, program)
        return self._on_trial.get(key, self._shares.get(key))

    def on_trial(self, uid: int, program: str | None) -> bool:
        """Return whether a user's program is being resized: its next standby is to take over at once."""
        return program is not None and (uid, program) in self._on_trial

    @contextmanager
    def trial(self, wanted: ProgramShare) -> Iterator[None]:
        """Give a program a share for the processes that come meanwhile; TrialError if it has one on trial."""
        key = (wanted.uid, wanted.program)
        if key in self._on_trial:
            raise TrialError("it is being resized already")
        self._on_trial[key] = wanted.share
        try:
            yield
        finally:
            del self._on_trial[key]

    def set(self, wanted: ProgramShare, living: Iterable[tuple[int, str | None]]) -> None:
        """Give a program a share, and forget programs of which no process is ``living`` (uid and program).

        Raises OSError if it cannot be written down; nothing has changed then.
        """
        kept = set(living)
        shares = {key: share for key, share in self._shares.items() if key in kept}
        shares[wanted.uid, wanted.program] = wanted.share
        self._write(shares)
        self._shares = shares

    def put_back(self, uid: int, program: str, share: float | None) -> None:
        """Give a program the share that it had before `set`; None: none. In force also if it cannot be written down."""
        self._shares.pop((uid, program), None)
        if share is not None:
            self._shares[uid, program] = share
        with suppress(OSError):
            self._write(self._shares)

    def _write(self, shares: dict[tuple[int, str], float]) -> None:
        rows = [ProgramShare(uid, program, share) for (uid, program), share in shares.items()]
        replace_file(self._path, msgspec.json.encode(rows))
