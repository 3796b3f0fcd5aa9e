"""Events of the API server: written once, repeated as series, tried again where that can help."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final

import httpx2
import structlog
import tenacity
from lightkube import ApiError, AsyncClient
from lightkube.models.core_v1 import ObjectReference
from lightkube.models.events_v1 import EventSeries
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.events_v1 import Event
from lightkube.types import PatchType

from mpsguard.guard.kubernetes import event_series
from mpsguard.guard.kubernetes.event_series import NewEvent, RepeatedEvent, Series, remembered, steps
from mpsguard.guard.kubernetes.notices import REASON, NamedPods, Subject, notices
from mpsguard.guard.kubernetes.sink import NotToldError, ToldIncident

CONTROLLER: Final = "mpsguard"
ACTION: Final = "ObserveFault"
TRIED_FOR: Final = 20.0
"""Seconds that one Event is tried again before the rest is left to the next round."""
_PASSING: Final = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
"""Answers after which the same request may succeed; the token of a service account is changed now and then."""


class EventWriter:
    """Writes Events for one node."""

    name = "events"

    def __init__(
        self,
        api: AsyncClient,
        node: str,
        names: NamedPods,
        *,
        tried_for: float = TRIED_FOR,
        wait: Callable[[tenacity.RetryCallState], float] | None = None,
    ) -> None:
        """Write by ``api``, which belongs to the caller.

        Args:
            api: The API server.
            node: The node's name.
            names: Whether a pod is told the names of pods in other namespaces.
            tried_for: Seconds that one Event is tried again.
            wait: Returns the seconds before the next attempt; by default they double, with chance, up to 5.
        """
        self._api = api
        self._node = node
        self._names = names
        self._tried_for = tried_for
        self._wait = wait or tenacity.wait_exponential_jitter(initial=0.2, max=5)
        self._log = structlog.get_logger()

    async def tell(self, told: Sequence[ToldIncident], known: Mapping[str, Series]) -> dict[str, Series]:
        """See `Sink`: at most one new Event and one repetition for each pair of an object and what befell it."""
        found = [notice for each in told for notice in notices(each.record, each.cast, self._node, self._names)]
        after = dict(known)
        for step in steps(known, found):
            written = await self._write(step)
            if written is not None:
                after[step.notice.key] = written
        return remembered(after.items(), time.time())

    async def _write(self, step: NewEvent | RepeatedEvent) -> Series | None:
        """Write or repeat an Event; return what is known of it then, None if the API server refuses it for good."""
        try:
            async for attempt in tenacity.AsyncRetrying(
                retry=tenacity.retry_if_exception(_passes),
                wait=self._wait,
                stop=tenacity.stop_after_delay(self._tried_for),
                reraise=True,
            ):
                with attempt:
                    return await (self._create(step) if isinstance(step, NewEvent) else self._repeat(step))
        except httpx2.HTTPError as error:
            if _passes(error):
                raise NotToldError(str(error) or type(error).__name__) from None
            # A namespace that is being deleted, or a role without the right to write Events.
            self._log.error("event_refused", subject=step.notice.subject.name, detail=str(error))
        return None

    async def _create(self, step: NewEvent) -> Series:
        notice, series = step.notice, step.series
        event = Event(
            metadata=ObjectMeta(name=series.name, namespace=series.namespace),
            eventTime=_time(notice.at),
            reportingController=CONTROLLER,
            reportingInstance=self._node[:128],
            action=ACTION,
            reason=REASON,
            type="Warning",
            note=notice.note,
            regarding=_reference(notice.subject),
            related=_reference(notice.related) if notice.related is not None else None,
        )
        try:
            await self._api.create(event)
        except ApiError as error:
            if error.response.status_code != HTTPStatus.CONFLICT:
                raise
            # Written before a crash of this process: its name says so.
        return series

    async def _repeat(self, step: RepeatedEvent) -> Series:
        series = step.series
        change = {"series": EventSeries(count=series.count, lastObservedTime=_time(series.last)).to_dict()}
        try:
            await self._api.patch(Event, series.name, change, namespace=series.namespace, patch_type=PatchType.MERGE)
        except ApiError as error:
            if error.response.status_code != HTTPStatus.NOT_FOUND:
                raise
            # The API server has forgotten it, or an operator has deleted it.
            return await self._create(event_series.first(step.notice))
        return series


def _passes(error: BaseException) -> bool:
    # Beside lightkube's ApiError, which is one: what a proxy answers in words that are not the API server's.
    if isinstance(error, httpx2.HTTPStatusError):
        return error.response.status_code in _PASSING
    return isinstance(error, httpx2.HTTPError)


def _reference(subject: Subject) -> ObjectReference:
    return ObjectReference(
        apiVersion="v1", kind=subject.kind, namespace=subject.namespace or None, name=subject.name, uid=subject.uid
    )


def _time(seconds: float) -> datetime:
    """Return a time with microseconds: the API server's MicroTime has six digits, and without them it is refused."""
    at = datetime.fromtimestamp(seconds, UTC)
    return at.replace(microsecond=max(at.microsecond, 1))
