"""The journal's rows: inserted, queried, and deleted by age. Blocks on the disk; owned by the journal's one thread."""

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from mpsguard.guard.evidence import ClientCame, Evidence
from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.guard.journal import schema
from mpsguard.guard.journal.records import (
    IncidentSummary,
    JournalError,
    JournalLimits,
    RecordedDecision,
    RecordedIncident,
)
from mpsguard.guard.journal.schema import DamagedError
from mpsguard.guard.model import Client

_BODY_SHARE: Final = 8
"""One incident takes at most this part of the file: a flood of evidence must not push all others out."""

_AROUND: Final = 30.0
"""Seconds before and after an incident from which evidence goes into its bundle."""

_BUNDLE_EVIDENCE: Final = 5000
"""Pieces of evidence taken from around an incident, nearest first."""

_ROOM: Final = 20
"""The oldest twentieth is deleted at a time, so that not every record waits for a deletion."""

_UPDATED: Final = (
    *("opened", "closed", "opened_wall", "closed_wall", "updated_at", "class", "gpu", "lane", "culprit_pid"),
    *("culprit_start", "confidence", "left_out", "clients", "body"),
)

_UNENDED: Final = """e.kind IN ('client_came', 'second_driver_came', 'went_over') AND NOT EXISTS (
    SELECT 1 FROM evidence x WHERE x.kind = 'process_ended' AND x.boot_id = e.boot_id AND x.pid = e.pid
    AND x.start_ticks = e.start_ticks"""


class _Head(msgspec.Struct, frozen=True):
    """An incident's body without its evidence, which a list does not need."""

    culprit: Suspect | None
    candidates: tuple[Suspect, ...]
    victims: tuple[Suspect, ...]
    reason: str
    xids: tuple[int, ...]
    survived: tuple[Suspect, ...] = ()


class RecordingTime(msgspec.Struct, frozen=True):
    """The time of recording, with what is needed to convert times of CLOCK_MONOTONIC later."""

    boot_id: str
    wall_offset: float
    now: float
    """UNIX seconds."""


class Store:
    """One open journal file."""

    def __init__(self, path: Path, limits: JournalLimits) -> None:
        """Open the file at ``path``; a damaged one is put aside, and a new one is created.

        Raises:
            JournalError: it cannot be opened.
        """
        self.aside: Path | None = None
        """Where a damaged file was moved to when this one was opened."""
        self._limits = limits
        try:
            self._open(path)
        except DamagedError:
            self.aside = schema.move_aside(path)
            try:
                self._open(path)
            except DamagedError as error:
                raise JournalError(f"journal {path}: {error}") from None

    def _open(self, path: Path) -> None:
        self._db = schema.connect(path)
        try:
            self._count()
        except sqlite3.Error as error:
            self._db.close()
            if schema.is_damage(error):
                raise DamagedError(str(error)) from None
            raise JournalError(f"journal {path}: {error}") from None

    def _count(self) -> None:
        self._rows = {
            table: self._db.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608  # two known names
            for table in ("evidence", "incidents")
        }

    def close(self) -> None:
        """Checkpoint the log and close the file."""
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all that is put within the context at once, or nothing of it; the oldest rows make room at the end."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            freed = self._make_room()
            self._db.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            with suppress(sqlite3.Error):
                self._count()
            raise
        if freed:
            # The rows are committed already: that space is returned later is no failure.
            with suppress(sqlite3.OperationalError):
                # Not `execute`, which takes a single step: this pragma frees one page per step.
                self._db.executescript("PRAGMA incremental_vacuum")

    def put_evidence(self, evidence: Evidence, at: RecordingTime) -> int:
        """Insert one observation and return its size in bytes."""
        body = msgspec.json.encode(evidence)
        process = evidence.process
        self._db.execute(
            "INSERT INTO evidence (boot_id, observed_at, wall_offset, source, kind, pid, start_ticks, body)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (
                at.boot_id,
                evidence.observed_at,
                at.wall_offset,
                evidence.source.value,
                evidence.what.__struct_config__.tag,
                process.pid if process else None,
                process.start_ticks if process else None,
                body,
            ),
        )
        self._rows["evidence"] += 1
        return len(body)

    def put_incident(
        self, name: str, incident: Incident, clients: Sequence[Client], versions: Mapping[str, str], at: RecordingTime
    ) -> int:
        """Insert or update an incident and return its size in bytes.

        Raises:
            ValueError: it is too big.
        """
        row = self._db.execute("SELECT wall_offset, clients FROM incidents WHERE id = ?", (name,)).fetchone()
        # The first offset is kept: the id contains its time, and the wall clock may be set between two updates.
        offset = at.wall_offset if row is None else row[0]
        known = {client.process: client for client in (msgspec.json.decode(row[1], type=list[Client]) if row else ())}
        known.update((client.process, client) for client in clients)
        body, left_out = self._encode(incident)
        known_clients = msgspec.json.encode(list(known.values()))
        culprit = incident.culprit
        values: dict[str, Any] = {
            "id": name,
            "boot_id": at.boot_id,
            "wall_offset": offset,
            "opened": incident.began,
            "closed": incident.ended,
            "opened_wall": incident.began + offset,
            "closed_wall": incident.ended + offset,
            "recorded_at": at.now,
            "updated_at": at.now,
            "class": incident.fault_class.value,
            "gpu": incident.gpu,
            "lane": incident.lane,
            "culprit_pid": culprit.pid if culprit else None,
            "culprit_start": culprit.process.start_ticks if culprit and culprit.process else None,
            "confidence": incident.confidence.value,
            "left_out": left_out,
            "clients": known_clients,
            "versions": msgspec.json.encode(versions),
            "body": body,
        }
        self._db.execute(
            f"INSERT INTO incidents ({', '.join(values)}) VALUES ({', '.join('?' * len(values))})"  # noqa: S608
            f" ON CONFLICT (id) DO UPDATE SET {', '.join(f'{column} = excluded.{column}' for column in _UPDATED)}",
            tuple(values.values()),
        )
        self._rows["incidents"] += row is None
        return len(body) + len(known_clients)

    def _encode(self, incident: Incident) -> tuple[bytes, int]:
        pieces = incident.evidence
        kept = len(pieces)
        while True:
            # The first and the last pieces say more than the repetitions between them.
            shown = pieces if kept == len(pieces) else pieces[: kept - kept // 2] + pieces[len(pieces) - kept // 2 :]
            body = msgspec.json.encode(msgspec.structs.replace(incident, evidence=shown))
            if len(body) <= self._limits.bytes // _BODY_SHARE:
                return body, len(pieces) - kept
            if not kept:
                raise ValueError(f"an incident of {len(body)} bytes is too big to be kept")
            kept //= 2

    def put_decision(self, name: str, decision: RecordedDecision) -> int:
        """Insert a decision, unless its incident was deleted, and return its size in bytes."""
        body = msgspec.json.encode(decision.data)
        self._db.execute(
            "INSERT INTO decisions (incident, at, kind, text, body) SELECT id, ?, ?, ?, ? FROM incidents WHERE id = ?",
            (decision.at, decision.kind, decision.text, body, name),
        )
        return len(body) + len(decision.text)

    def put_meta(self, key: str, value: str) -> int:
        """Insert or replace one value and return its size in bytes."""
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))
        return len(key) + len(value)

    def meta(self) -> dict[str, str]:
        """Return all values."""
        return dict(self._db.execute("SELECT key, value FROM meta").fetchall())

    def names(self) -> list[str]:
        """Return the ids of all incidents, oldest first."""
        return [row[0] for row in self._db.execute("SELECT id FROM incidents ORDER BY seq")]

    def summaries(self, limit: int, since: float) -> list[IncidentSummary]:
        """Return the newest incidents that had not ended before ``since`` (UNIX seconds), newest first."""
        rows = self._db.execute(
            "SELECT id, opened_wall, closed_wall, class, gpu, lane, confidence, clients, body FROM incidents"
            " WHERE closed_wall >= ? ORDER BY seq DESC LIMIT ?",
            (since, limit),
        )
        found = []
        for name, opened, closed, fault_class, gpu, lane, confidence, clients, body in rows:
            # A record that is damaged on the disk is left out; the others are shown.
            with suppress(msgspec.DecodeError, ValueError):
                head = msgspec.json.decode(body, type=_Head)
                commands = {
                    client.process: client.command for client in msgspec.json.decode(clients, type=list[Client])
                }
                found.append(
                    IncidentSummary(
                        id=name,
                        began=opened,
                        ended=closed,
                        fault_class=FaultClass(fault_class),
                        gpu=gpu,
                        lane=lane,
                        culprit=head.culprit,
                        culprit_command=commands.get(head.culprit.process)
                        if head.culprit and head.culprit.process
                        else None,
                        candidates=head.candidates,
                        victims=head.victims,
                        confidence=Confidence(confidence),
                        reason=head.reason,
                        xids=head.xids,
                        survived=head.survived,
                    )
                )
        return found

    def record(self, name: str) -> RecordedIncident:
        """Return one incident.

        Raises:
            KeyError: there is none with this id.
            ValueError: its record is damaged.
        """
        row = self._db.execute(
            "SELECT boot_id, wall_offset, recorded_at, updated_at, body, clients, versions, left_out"
            " FROM incidents WHERE id = ?",
            (name,),
        ).fetchone()
        if row is None:
            raise KeyError(name)
        boot_id, offset, recorded_at, updated_at, body, clients, versions, left_out = row
        decisions = self._db.execute(
            "SELECT at, kind, text, body FROM decisions WHERE incident = ? ORDER BY seq", (name,)
        )
        return RecordedIncident(
            id=name,
            boot_id=boot_id,
            wall_offset=offset,
            recorded_at=recorded_at,
            updated_at=updated_at,
            incident=msgspec.json.decode(body, type=Incident),
            clients=msgspec.json.decode(clients, type=tuple[Client, ...]),
            decisions=tuple(
                RecordedDecision(at, kind, text, msgspec.json.decode(data)) for at, kind, text, data in decisions
            ),
            versions=msgspec.json.decode(versions, type=dict[str, str]),
            evidence_left_out=left_out,
        )

    def evidence_for(self, record: RecordedIncident) -> tuple[Evidence, ...]:
        """Return all that triage needs to judge ``record`` again, in the order of observation."""
        incident = record.incident
        rows = self._db.execute(
            "SELECT body FROM evidence WHERE boot_id = ? AND observed_at BETWEEN ? AND ?"
            " ORDER BY abs(observed_at - ?) LIMIT ?",
            (record.boot_id, incident.began - _AROUND, incident.ended + _AROUND, incident.began, _BUNDLE_EVIDENCE),
        ).fetchall()
        # A possible culprit may have arrived long before: a client is on a lane until it has ended.
        rows += self._db.execute(
            f"SELECT e.body FROM evidence e WHERE e.boot_id = ? AND e.observed_at < ?"  # noqa: S608  # a constant
            f" AND {_UNENDED} AND x.observed_at < ?) ORDER BY e.seq DESC LIMIT ?",
            (record.boot_id, incident.began - _AROUND, incident.began - _AROUND, _BUNDLE_EVIDENCE),
        ).fetchall()
        pieces = dict.fromkeys(incident.evidence)
        for (body,) in rows:
            with suppress(msgspec.DecodeError):
                pieces[msgspec.json.decode(body, type=Evidence)] = None
        return tuple(sorted(pieces, key=lambda piece: (piece.observed_at, not isinstance(piece.what, ClientCame))))

    def _make_room(self) -> bool:
        """Delete the oldest rows until the limits hold, and return whether any was deleted. Within a transaction."""
        freed = False
        for table, limit in (("evidence", self._limits.evidence), ("incidents", self._limits.incidents)):
            if self._rows[table] > limit:
                self._drop(table, self._rows[table] - limit + limit // _ROOM)
                freed = True
        while self._used() > self._limits.bytes and any(self._rows.values()):
            # The larger table makes room: a flood of evidence costs no incidents, and many incidents cost no evidence.
            sizes = {
                table: self._db.execute(f"SELECT total(length(body)) FROM {table}").fetchone()[0]  # noqa: S608
                for table in self._rows
            }
            table = max(sizes, key=lambda name: (sizes[name], self._rows[name]))
            self._drop(table, max(1, self._rows[table] // _ROOM))
            freed = True
        return freed

    def _used(self) -> int:
        values = [
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        ]
        return int((values[0] - values[1]) * values[2])

    def _drop(self, table: str, count: int) -> None:
        # The arrival of a living client is deleted last: without it, triage would not know the client as a suspect.
        order = f"({_UNENDED})), e.seq" if table == "evidence" else "e.seq"
        self._rows[table] -= self._db.execute(
            f"DELETE FROM {table} WHERE seq IN (SELECT e.seq FROM {table} e ORDER BY {order} LIMIT ?)",  # noqa: S608
            (count,),
        ).rowcount
