"""The program that a snapshot is taken of: held by a pidfd, with its zone table."""

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from mpsguard.images.snapshot.errors import NotPreloadedError, SnapshotError
from mpsguard.linux.closing import Closing
from mpsguard.linux.descriptors import foreign_fd
from mpsguard.linux.descriptors.fd_closer import close_all
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import TableError, ZoneTable

_MOST_TABLES: Final = 4
"""Memory files opened that are named as zone tables are; a program that has mpsguard's Python zones has two."""


class PreloadedProgram(Closing):
    """Owns a pidfd and a descriptor of the program's zone table."""

    def __init__(self, pid: int) -> None:
        """Find it; raise SnapshotError."""
        with ExitStack() as undo:
            try:
                self._handle = undo.enter_context(ProcessHandle.open(pid))
                self.uid = Path(f"/proc/{pid}").stat().st_uid
            except (ProcessLookupError, FileNotFoundError):
                raise SnapshotError(f"there is no process {pid}") from None
            if os.geteuid() not in (0, self.uid):
                raise SnapshotError(f"process {pid} is of user {self.uid}: only that user and root may take a snapshot")
            self.key = self._handle.key
            self.command = procfs.command(pid)
            self._table = self._find(pid)
            undo.callback(os.close, self._table)
            # The table was found by number: it is this process's only if that had not ended by then.
            if not self._handle.alive():
                raise SnapshotError(f"process {pid} has ended")
            self._owned = undo.pop_all()

    def table(self) -> ZoneTable:
        """Read the zone table; raise SnapshotError."""
        try:
            return zone_table.read(self._table)
        except TableError as error:
            raise SnapshotError(f"the zone table of process {self.key.pid}: {error}") from None

    def alive(self) -> bool:
        """Return whether the program runs still."""
        return self._handle.alive()

    def _find(self, pid: int) -> int:
        """Return a descriptor of the table that names a service, owned by the caller."""
        try:
            tables = foreign_fd.memory_files(self._handle.fileno(), pid, zone_table.LINK, _MOST_TABLES)
        except ProcessLookupError:
            raise SnapshotError(f"process {pid} has ended") from None
        except PermissionError:
            raise SnapshotError(f"process {pid} may not be looked at: it has more rights than this command") from None
        served, seen = -1, False
        for fd in tables:
            with suppress(TableError):
                table = zone_table.read(fd)
                seen = True
                if served < 0 and table.service is not None:
                    served = fd
        close_all([fd for fd in tables if fd != served])
        if served >= 0:
            return served
        if seen:
            raise NotPreloadedError(f"process {pid} has a zone table, but no preload that serves snapshots")
        raise NotPreloadedError(
            f"process {pid} does not run under the preload (libmpsguard.so), or has not allocated GPU memory yet"
        )

    def close(self) -> None:
        """Let go of it."""
        self._owned.close()
