"""The reporter: tells the guard of the node's pods, and what is outside of the guard's incidents."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import httpx2
import msgspec
import structlog

from mpsguard.guard.control_api.async_client import NoAnswerError, ask
from mpsguard.guard.control_api.messages.clients import ClientList, ClientsArguments, PodsArguments, PodsNoted
from mpsguard.guard.control_api.messages.incidents import IncidentArguments, IncidentList, IncidentsArguments
from mpsguard.guard.journal.records import IncidentSummary, RecordedIncident
from mpsguard.guard.kubernetes.event_series import Series
from mpsguard.guard.kubernetes.node_pods import NodePods
from mpsguard.guard.kubernetes.notices import cast_of
from mpsguard.guard.kubernetes.sink import NotToldError, Sink, ToldIncident
from mpsguard.linux.files.directory import replace_file

LOOKS_BACK: Final = 600.0
"""Seconds before its first start that a reporter looks back, if no progress is saved."""
_MAX_FILE: Final = 4 << 20
SETTLES: Final = 5.0
"""Seconds without another verdict after which an incident is told; the guard's counters wait as long."""
WAITS: Final = 60.0
"""Seconds after its begin that one is told although its verdict still changes."""
AT_ONCE: Final = 100
"""Incidents told in one round."""
_LISTED: Final = 1000
"""Incidents that the guard keeps, and lists at most: the queue of what is still to be told."""
_GUARD_ANSWERS: Final = 5.0
_ROUND: Final = 120.0
"""Seconds for a round; everything in it has a deadline of its own, too."""


class Progress(msgspec.Struct, frozen=True):
    """What was told so far. Times are UNIX seconds."""

    since: float
    """All incidents that ended before are done with."""
    done: tuple[str, ...] = ()
    """The ids of those that ended later and are done with; the last one told is the last one here."""
    series: dict[str, Series] = {}
    """Events that may be repeated, by the key of their notices."""


class ProgressFile:
    """The file with the progress."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, now: float) -> tuple[Progress, str]:
        """Return the progress, and why it could not be read; "" if it was, or if there is none yet."""
        fresh = Progress(now - LOOKS_BACK)
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(_MAX_FILE), type=Progress), ""
        except FileNotFoundError:
            return fresh, ""
        except (OSError, msgspec.MsgspecError) as error:
            return fresh, f"{self._path}: {error}"

    def save(self, progress: Progress) -> None:
        """Put a progress in the place of the one before; OSError."""
        replace_file(self._path, msgspec.json.encode(progress))


class Reporter:
    """Goes round by round, and keeps nothing but what the files of progress have."""

    def __init__(
        self,
        run_directory: str,
        node_pods: NodePods,
        sinks: Sequence[Sink],
        state_directory: Path,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` returns UNIX seconds."""
        self._run_directory = run_directory
        self._pods = node_pods
        self._clock = clock
        self._sinks = [(sink, ProgressFile(state_directory / f"{sink.name}.json")) for sink in sinks]
        self._log = structlog.get_logger()
        self._progress: dict[str, Progress] = {}
        for sink, file in self._sinks:
            self._progress[sink.name], problem = file.load(clock())
            if problem:
                self._log.warning("progress_lost", sink=sink.name, detail=problem)
        self._complaints: dict[str, str] = {}

    async def run(self, interval: float) -> None:
        """Go round every ``interval`` seconds until cancelled, which does no harm at any moment."""
        while True:
            await self.round()
            await asyncio.sleep(interval)

    async def round(self) -> None:
        """Tell once what is new. What fails is said in the log, and tried again in the next round."""
        try:
            async with asyncio.timeout(_ROUND):
                await self._refresh_pods()
                for sink, file in self._sinks:
                    await self._tell(sink, file)
        except (NoAnswerError, TimeoutError, httpx2.HTTPError, msgspec.MsgspecError) as error:
            self._complain("round_failed", str(error) or type(error).__name__)
        else:
            self._complain("round_failed", "")

    async def _refresh_pods(self) -> None:
        found = await ask(self._run_directory, "clients", ClientsArguments(), ClientList, _GUARD_ANSWERS)
        await self._pods.refresh(found.clients)
        table = self._pods.table
        if all(table.of(client) == found.pod_of(number) for number, client in enumerate(found.clients)):
            return
        try:
            await ask(self._run_directory, "pods", PodsArguments(self._pods.pods), PodsNoted, _GUARD_ANSWERS)
        except NoAnswerError as error:
            self._complain("pods_not_noted", str(error))
        else:
            self._complain("pods_not_noted", "")

    async def _tell(self, sink: Sink, file: ProgressFile) -> None:
        progress = self._progress[sink.name]
        listed = await ask(
            self._run_directory,
            "incidents",
            IncidentsArguments(_LISTED, progress.since),
            IncidentList,
            _GUARD_ANSWERS,
        )
        full = "older incidents than the guard lists are not told" if len(listed.incidents) == _LISTED else ""
        self._complain(f"{sink.name}_behind", full)
        left = [each for each in reversed(listed.incidents) if each.id not in progress.done]
        settled = [record for each in left[:AT_ONCE] if (record := await self._settled(each)) is not None]
        if not settled:
            return
        told = [ToldIncident(record, cast_of(record, self._pods.table)) for record in settled]
        try:
            series = await sink.tell(told, progress.series)
        except NotToldError as error:
            self._complain(f"{sink.name}_not_told", str(error))
            return
        self._complain(f"{sink.name}_not_told", "")
        self._log.info("told", sink=sink.name, incidents=[each.id for each in settled])
        done = (*progress.done, *(each.id for each in settled))
        self._progress[sink.name] = advanced(progress, listed.incidents, done, series)
        try:
            file.save(self._progress[sink.name])
        except OSError as error:
            self._complain("progress_not_saved", str(error))
        else:
            self._complain("progress_not_saved", "")

    async def _settled(self, summary: IncidentSummary) -> RecordedIncident | None:
        record = await ask(
            self._run_directory, "incident", IncidentArguments(summary.id), RecordedIncident, _GUARD_ANSWERS
        )
        now = self._clock()
        if now - record.updated_at < SETTLES and now - summary.began < WAITS:
            return None
        return record

    def _complain(self, kind: str, detail: str) -> None:
        """Log what fails when it is not what failed before; "" if it does not fail."""
        if detail and self._complaints.get(kind) != detail:
            self._log.warning(kind, detail=detail)
        self._complaints[kind] = detail


def advanced(
    progress: Progress, listed: Sequence[IncidentSummary], done: Sequence[str], series: dict[str, Series]
) -> Progress:
    """Return the progress after a round.

    Args:
        progress: That before.
        listed: The incidents since then, as far as the guard knew them.
        done: The ids of all that need not be told again, oldest first.
        series: See `Sink.tell`.
    """
    left = [each.ended for each in listed if each.id not in done]
    since = min(left) if left else max((each.ended for each in listed), default=progress.since)
    there = {each.id for each in listed if each.ended >= since}
    return Progress(since, tuple(each for each in done if each in there), series)
