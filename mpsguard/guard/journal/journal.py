"""The journal: evidence, incidents and the decisions on them, on disk. The event loop never waits for the disk.

Records go into a bounded queue and are written by one thread, many to a transaction. When the disk cannot keep up and
the queue is full, records are dropped and counted: evidence first, which may fill three quarters of it, then incidents.
After `flush`, all that was recorded before survives the death of the guard and of the machine.

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
from mpsguard.guard.evidence import Evidence
from mpsguard.guard.incident import Incident
from mpsguard.guard.journal.records import (
    BUNDLE_VERSION,
    Bundle,
    IncidentSummary,
    JournalError,
    JournalLimits,
    RecordedDecision,
    RecordedIncident,
)
from mpsguard.guard.journal.store import RecordingTime, Store
from mpsguard.guard.journal.writer import Writer
from mpsguard.guard.model import Client, Notify


def _ignore(_: str, __: Mapping[str, Any]) -> None:
    """Discard a notice."""


def _nothing(_: Store) -> None:
    """Ask for nothing: the caller waits for the answer, not for its value."""


class Journal:
    """The guard's interface to the journal; it assigns the incidents' ids."""

    def __init__(
        self,
        writer: Writer,
        limits: JournalLimits,
        versions: Mapping[str, str],
        meta: dict[str, str],
        names: Iterable[str],
    ) -> None:
        self._writer = writer
        self._limits = limits
        self._versions = {"mpsguard": mpsguard.__version__, "kernel": platform.release(), **versions}
        self._boot_id = _boot_id()
        self._meta = meta
        # Twice as many as are kept: an id must not be assigned again to another incident.
        self._ids: OrderedDict[str, None] = OrderedDict.fromkeys(names)

    @classmethod
    def open(
        cls,
        path: Path,
        limits: JournalLimits | None = None,
        *,
        versions: Mapping[str, str] | None = None,
        on_notice: Notify = _ignore,
    ) -> Self:
        """Open the journal at ``path``, or create it; blocks.

        Args:
            path: the database file.
            limits: how much is kept; the defaults of `JournalLimits` if None.
            versions: recorded with every incident, beside the guard's and the kernel's.
            on_notice: called with the kind and data of each event to publish, from the journal's thread.

        Raises:
            JournalError: it cannot be opened.
        """
        limits = limits or JournalLimits()
        store = Store(path, limits)
        try:
            meta, names = store.meta(), store.names()
        except sqlite3.Error as error:
            store.close()
            raise JournalError(f"journal {path}: {error}") from None
        if store.aside is not None:
            on_notice("journal_damaged", {"aside": str(store.aside)})
        return cls(Writer(store, path, limits, on_notice), limits, versions or {}, meta, names)

    @property
    def dropped(self) -> int:
        """Number of records dropped since this guard started."""
        return self._writer.dropped

    def record_evidence(self, evidence: Evidence) -> None:
        """Record one observation; never waits."""
        at = self._recording_time()
        self._writer.put(lambda store: store.put_evidence(evidence, at), spare=self._limits.queue // 4)

    def record_incident(self, incident: Incident, clients: Iterable[Client] = (), *, id: str | None = None) -> str:  # noqa: A002
        """Record an incident, or a later verdict on it, and return its id; never waits.

        Args:
            incident: the verdict.
            clients: may be all known clients; those that take part in the incident are recorded with it.
            id: that of the incident to update; a new one is assigned if None.
        """
        at = self._recording_time()
        name = id or self._new_id(incident.began + at.wall_offset)
        parties = {
            suspect.process
            for suspect in (incident.culprit, *incident.candidates, *incident.victims, *incident.survived)
            if suspect
        }
        parties |= {piece.process for piece in incident.evidence}
        concerned = [client for client in clients if client.process in parties]
        self._writer.put(lambda store: store.put_incident(name, incident, concerned, self._versions, at))
        return name

    def record_decision(self, id: str, kind: str, text: str, data: Mapping[str, Any] | None = None) -> None:  # noqa: A002
        """Record a decision on an incident, an action, or its outcome; never waits. ``data`` is copied."""
        decision = RecordedDecision(time.time(), kind, text, msgspec.to_builtins(dict(data or {})))
        self._writer.put(lambda store: store.put_decision(id, decision))

    def remember(self, key: str, value: str) -> None:
        """Keep a value for the next guard; it is written after all earlier records. Never waits."""
        self._meta[key] = value
        self._writer.put(lambda store: store.put_meta(key, value))

    def recall(self, key: str) -> str | None:
        """Return the value remembered last, by this guard or an earlier one; None if there is none."""
        return self._meta.get(key)

    def open_again(self, within: float) -> None:
        """Open the file anew, since it has lost its name; what was in it is lost. On any thread; blocks.

        Raises:
            JournalError: it cannot be opened.
            TimeoutError: not within so many seconds.
        """
        self._writer.open_again(within)

    def remember_again(self) -> None:
        """Write down all that is remembered, into a new file."""
        for key, value in list(self._meta.items()):
            self.remember(key, value)

    async def list(self, limit: int = 100, since: float = 0.0) -> Sequence[IncidentSummary]:
        """Return the newest incidents, newest first, without those that had ended before ``since`` (UNIX seconds)."""
        return await self._writer.ask(lambda store: store.summaries(limit, since))

    async def get(self, id: str) -> RecordedIncident:  # noqa: A002
        """Return one incident.

        Raises:
            KeyError: there is none with this id.
            JournalError: its record is damaged.
        """
        return await self._writer.ask(lambda store: _record(store, id))

    async def export(self, id: str) -> Bundle:  # noqa: A002
        """Return one incident with all that triage needs to judge it again; errors as in `get`."""

        def look(store: Store) -> Bundle:
            record = _record(store, id)
            return Bundle(BUNDLE_VERSION, time.time(), record, store.evidence_for(record), self.dropped)

        return await self._writer.ask(look)

    async def flush(self) -> None:
        """Wait until all that was recorded before is on disk (or was dropped)."""
        await self._writer.ask(_nothing)

    def close(self, within: float | None = None) -> bool:
        """Write what waits, then close the file; blocks until then. Later records are dropped.

        May be called from another thread than the event loop's once nothing is recorded any more.

        Returns:
            False if it did not finish within ``within`` seconds, as with a disk that hangs.
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

    def _recording_time(self) -> RecordingTime:
        now = time.time()
        return RecordingTime(self._boot_id, now - time.monotonic(), now)


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
