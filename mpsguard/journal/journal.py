"""The journal: evidence, incidents, and what was done about them, on disk, without the event loop ever waiting for it.

Records go into a bounded queue and are written by one thread, many to a transaction. When the disk cannot keep up the
queue is full and records are dropped and counted: evidence first, which may fill three quarters of it, then incidents.
`flush` says when all that was recorded so far is safe from the guard's and the machine's death.

The ``record_*`` methods, `remember` and `recall` belong to one thread, the event loop's.
"""

import platform
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

import mpsguard
from mpsguard.evidence import Evidence
from mpsguard.incident import Incident
from mpsguard.journal.records import (
    BUNDLE_VERSION,
    Bundle,
    Decision,
    IncidentSummary,
    JournalError,
    Limits,
    RecordedIncident,
)
from mpsguard.journal.store import Moment, Store
from mpsguard.journal.writer import Notice, Writer
from mpsguard.model import Client


def _ignore(_: str, __: Mapping[str, Any]) -> None:
    """Tell nobody."""


def _nothing(_: Store) -> None:
    """Ask nothing: the answer's coming is the answer."""


class Journal:
    """The journal as the guard uses it: gives out ids."""

    def __init__(
        self, writer: Writer, limits: Limits, versions: Mapping[str, str], meta: dict[str, str], names: Iterable[str]
    ) -> None:
        self._writer = writer
        self._limits = limits
        self._versions = {"mpsguard": mpsguard.__version__, "kernel": platform.release(), **versions}
        self._boot_id = _boot_id()
        self._meta = meta
        # Twice as many as are kept: an id that was just given away must not come again for another incident.
        self._ids: OrderedDict[str, None] = OrderedDict.fromkeys(names)

    @classmethod
    def open(
        cls,
        path: Path,
        limits: Limits | None = None,
        *,
        versions: Mapping[str, str] | None = None,
        noticed: Notice = _ignore,
    ) -> Self:
        """Open or make the journal at ``path``; blocks. Raises JournalError.

        ``noticed`` is called with the kind and data of what should become an event, from the journal's thread.
        ``versions`` goes into every incident, beside the guard's and the kernel's.
        """
        limits = limits or Limits()
        store = Store(path, limits)
        try:
            meta, names = store.meta(), store.names()
        except sqlite3.Error as error:
            store.close()
            raise JournalError(f"journal {path}: {error}") from None
        if store.aside is not None:
            noticed("journal_damaged", {"aside": str(store.aside)})
        return cls(Writer(store, path, limits, noticed), limits, versions or {}, meta, names)

    @property
    def dropped(self) -> int:
        """Records that were not kept since this guard started."""
        return self._writer.dropped

    def record_evidence(self, evidence: Evidence) -> None:
        """Keep one observation; never waits."""
        at = self._moment()
        self._writer.put(lambda store: store.put_evidence(evidence, at), spare=self._limits.queue // 4)

    def record_incident(self, incident: Incident, clients: Iterable[Client] = (), *, id: str | None = None) -> str:  # noqa: A002
        """Keep an incident, or what is now known of one, and return its id; never waits.

        It is the earlier one that ``id`` names, or a new one. ``clients`` may be all that are known: those that take
        part in it are kept with it.
        """
        at = self._moment()
        name = id or self._new_id(incident.began + at.wall_offset)
        parties = {
            suspect.process for suspect in (incident.culprit, *incident.candidates, *incident.victims) if suspect
        }
        parties |= {piece.process for piece in incident.evidence}
        concerned = [client for client in clients if client.process in parties]
        self._writer.put(lambda store: store.put_incident(name, incident, concerned, self._versions, at))
        return name

    def record_decision(self, id: str, kind: str, text: str, data: Mapping[str, Any] | None = None) -> None:  # noqa: A002
        """Keep what was decided about an incident, done, or came of it; never waits. ``data`` is copied."""
        decision = Decision(time.time(), kind, text, msgspec.to_builtins(dict(data or {})))
        self._writer.put(lambda store: store.put_decision(id, decision))

    def remember(self, key: str, value: str) -> None:
        """Keep a value for the next guard; on disk it never comes before what was recorded before it. Never waits."""
        self._meta[key] = value
        self._writer.put(lambda store: store.put_meta(key, value))

    def recall(self, key: str) -> str | None:
        """The value remembered last, by this guard or an earlier one; None if there is none."""
        return self._meta.get(key)

    async def list(self, limit: int = 100, since: float = 0.0) -> Sequence[IncidentSummary]:
        """The newest incidents, newest first; ``since`` (UNIX seconds) leaves out what had ended before."""
        return await self._writer.ask(lambda store: store.summaries(limit, since))

    async def get(self, id: str) -> RecordedIncident:  # noqa: A002
        """One incident; KeyError if there is none of that id, JournalError if its record is damaged."""
        return await self._writer.ask(lambda store: _record(store, id))

    async def export(self, id: str) -> Bundle:  # noqa: A002
        """One incident with all that triage needs to judge it again; errors as `get`."""

        def look(store: Store) -> Bundle:
            record = _record(store, id)
            return Bundle(BUNDLE_VERSION, time.time(), record, store.evidence_for(record), self.dropped)

        return await self._writer.ask(look)

    async def flush(self) -> None:
        """Return when all that was recorded before is on disk (or was dropped)."""
        await self._writer.ask(_nothing)

    def close(self, within: float | None = None) -> bool:
        """Write what waits, then give the file back; blocks until then. What is recorded later is dropped.

        False if a disk that hangs did not let it within ``within`` seconds. May be called beside the event loop once
        nobody records any more.
        """
        return self._writer.close(within)

    def _new_id(self, began: float) -> str:
        stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(began))
        number = 1
        while (name := f"{stamp}-{number}") in self._ids:
            number += 1
        self._ids[name] = None
        while len(self._ids) > 2 * self._limits.incidents:
            self._ids.popitem(last=False)
        return name

    def _moment(self) -> Moment:
        now = time.time()
        return Moment(self._boot_id, now - time.monotonic(), now)


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _record(store: Store, name: str) -> RecordedIncident:
    try:
        return store.record(name)
    except (ValueError, msgspec.DecodeError) as error:
        raise JournalError(f"the record of incident {name} is damaged: {error}") from None
