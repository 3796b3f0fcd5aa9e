"""The journal's file: created or opened, refused if it is another program's, put aside if it is damaged.

Why these settings:

* WAL: a commit is one append, and a process killed at any moment leaves either all of it or nothing.
* synchronous=FULL: with NORMAL, WAL survives the guard's death but not the machine's. If a GPU falls off the bus, the
  machine is reset minutes later at best, and the operator then looks for that very incident. The price is one fsync per
  batch, and only the journal's own thread waits for it.
* locking_mode=EXCLUSIVE: ids are assigned from memory, so two guards must not write to one journal. The lock is the
  kernel's and ends with the process that holds it.
* auto_vacuum=INCREMENTAL: deleted pages return to the file system without a rewrite of the whole file.
"""

import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from mpsguard.guard.journal.records import JournalError
from mpsguard.linux.files.directory import Directory

APPLICATION_ID: Final = 0x4D505347
"""``MPSG``: `file` and the guard identify the journal by it."""

VERSION: Final = 1

_ASIDE: Final = 2
"""Damaged files kept, so that they do not fill the disk."""

_WRITE_VERSION: Final = 18
"""Offset of "file format write version", 1 or 2: a file with a greater one is opened by SQLite, for reading alone."""
_LOG_LIMIT: Final = 4 << 20
"""Bytes to which the write-ahead log is cut after a checkpoint."""

_TABLES: Final = (
    """CREATE TABLE evidence (
        seq INTEGER PRIMARY KEY, boot_id TEXT NOT NULL, observed_at REAL NOT NULL, wall_offset REAL NOT NULL,
        source TEXT NOT NULL, kind TEXT NOT NULL, pid INTEGER, start_ticks INTEGER, body BLOB NOT NULL) STRICT""",
    "CREATE INDEX evidence_by_time ON evidence (boot_id, observed_at)",
    "CREATE INDEX evidence_by_process ON evidence (pid, start_ticks, kind)",
    """CREATE TABLE incidents (
        seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, boot_id TEXT NOT NULL, wall_offset REAL NOT NULL,
        opened REAL NOT NULL, closed REAL NOT NULL, opened_wall REAL NOT NULL, closed_wall REAL NOT NULL,
        recorded_at REAL NOT NULL, updated_at REAL NOT NULL, class TEXT NOT NULL, gpu TEXT, lane TEXT,
        culprit_pid INTEGER, culprit_start INTEGER, confidence TEXT NOT NULL, left_out INTEGER NOT NULL,
        clients BLOB NOT NULL, versions BLOB NOT NULL, body BLOB NOT NULL) STRICT""",
    """CREATE TABLE decisions (
        seq INTEGER PRIMARY KEY, incident TEXT NOT NULL REFERENCES incidents (id) ON DELETE CASCADE,
        at REAL NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL, body BLOB NOT NULL) STRICT""",
    "CREATE INDEX decisions_by_incident ON decisions (incident)",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT",
)


class DamagedError(Exception):
    """The file is no database, or an inconsistent one."""


def is_damage(error: sqlite3.Error) -> bool:
    """Return whether the file itself is at fault, and not the disk or the query."""
    # The low byte is the kind of error; above it is the detail. A module-level failure has no code at all.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    # Read-only: it could be opened for writing, so its header names a later format, or the open file was moved away.
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA, sqlite3.SQLITE_READONLY)


def connect(path: Path) -> sqlite3.Connection:
    """Open the journal, or create it.

    Raises:
        DamagedError: the file is damaged.
        JournalError: it cannot be opened, or belongs to another program or a later version.
    """
    try:
        # It contains command lines, so no other user may ever read it. SQLite gives the log beside it the same mode.
        with Directory.make(path.parent, 0o700) as directory:
            fd = directory.open_file(path.name, os.O_RDWR)
        try:
            # Here: a descriptor of the file that is closed later takes SQLite's locks with it.
            may_be_written = os.pread(fd, 1, _WRITE_VERSION) <= b"\2"
        finally:
            os.close(fd)
    except OSError as error:
        raise JournalError(f"journal {path}: {error.strerror}") from None
    connection = sqlite3.connect(path, timeout=1.0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path, may_be_written=may_be_written)
    except UnicodeDecodeError:
        # SQLite's message quotes text of the file, which is not UTF-8.
        connection.close()
        raise DamagedError("a schema that is no text") from None
    except sqlite3.Error as error:
        connection.close()
        if is_damage(error):
            raise DamagedError(str(error)) from None
        raise JournalError(f"journal {path}: {error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def move_aside(path: Path) -> Path:
    """Move a damaged journal and its log away, and return the new path.

    Raises:
        JournalError: it cannot be moved.
    """
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    try:
        path.rename(aside)
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}-wal").rename(aside.with_name(f"{aside.name}-wal"))
        # Left by a journal that was not opened exclusively; SQLite would use it for the new one.
        path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
        earlier = [old for old in path.parent.glob(f"{path.name}.damaged-*") if not old.name.endswith("-wal")]
        for old in sorted(earlier, key=lambda old: old.stat().st_mtime_ns)[:-_ASIDE]:
            old.unlink()
            old.with_name(f"{old.name}-wal").unlink(missing_ok=True)
    except OSError as error:
        raise JournalError(f"journal {path} is damaged and cannot be put aside: {error.strerror}") from None
    return aside


def _prepare(connection: sqlite3.Connection, path: Path, *, may_be_written: bool) -> None:
    # A flipped bit in a text must not make its row unreadable.
    connection.text_factory = lambda raw: raw.decode(errors="replace")
    connection.execute("PRAGMA locking_mode=EXCLUSIVE")
    try:
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error as error:
        # The query is valid: a general error comes from the file ("unsupported file format").
        if error.sqlite_errorcode == sqlite3.SQLITE_ERROR:
            raise DamagedError(str(error)) from None
        raise
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if tables and application != APPLICATION_ID:
        raise JournalError(f"journal {path}: this is another program's database; move it away")
    if version > VERSION:
        raise JournalError(
            f"journal {path}: version {version} was written by a newer mpsguard, this one reads up to {VERSION}; "
            "move it away, or use that mpsguard"
        )
    if tables:
        found = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if version != VERSION or found != set(_TABLES):
            # Version 1 is the first one: there is no earlier one to migrate from.
            raise DamagedError("its tables are not what its version says")
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise DamagedError(verdict)
        if not may_be_written:
            raise DamagedError("a file format that may only be read")
    else:
        # It has an effect only before the first page is written.
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA wal_autocheckpoint=256")
    connection.execute(f"PRAGMA journal_size_limit={_LOG_LIMIT}")
    if not tables:
        _create(connection)


def _create(connection: sqlite3.Connection) -> None:
    """Create the tables atomically: a process that is killed meanwhile leaves an empty database, which is usable."""
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version={VERSION}")
    connection.execute("COMMIT")
