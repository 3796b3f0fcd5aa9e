"""What a pool counts, for Prometheus."""

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mpsguard.images.pool.messages import PoolListing
from mpsguard.images.pool.schedule import Phase
from mpsguard.images.pool.tiers import Tier

# As for the guard's own.
disable_created_metrics()  # type: ignore[no-untyped-call]

_BUCKETS: Final = (0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.15, 0.3, 0.6, 1.2, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Seconds."""


class TierResult(StrEnum):
    """What a request for an image found in a tier."""

    HIT = "hit"
    """The image was there, or on its way."""
    MISS = "miss"
    """It had to be brought there."""
    REFUSED = "refused"
    """There was no room."""


class StartOutcome(StrEnum):
    """How a start ended."""

    STARTED = "started"
    REFUSED = "refused"
    """By the worker, or because workers died over it."""
    WITHDRAWN = "withdrawn"
    """The program left, or its time was over."""


class PoolMetrics:
    """Owns the series; all exist from the beginning."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._images = self._counter("images_requested", "Requests for images, by what they found", "tier", "found")
        self._evicted = self._counter("images_evicted", "Images that made room for others", "tier")
        self._starts = self._counter("starts", "Starts of images by workers, by outcome", "outcome")
        self._repeated = self._counter("starts_repeated", "Workers that ended in the midst of a start")
        self._seconds = Histogram(
            "mpsguard_pool_start_seconds",
            "From a request to a worker that serves",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        for tier in Tier:
            self._evicted.labels(tier)
            for found in TierResult:
                self._images.labels(tier, found)
        for outcome in StartOutcome:
            self._starts.labels(outcome)

    def requested(self, tier: Tier, found: TierResult) -> None:
        """Count a request for an image."""
        self._images.labels(tier, found).inc()

    def evicted(self, tier: Tier) -> None:
        """Count an image that left a tier."""
        self._evicted.labels(tier).inc()

    def start_ended(self, outcome: StartOutcome, seconds: float) -> None:
        """Count a start, and how long it took."""
        self._starts.labels(outcome).inc()
        if outcome is StartOutcome.STARTED:
            self._seconds.observe(seconds)

    def repeated(self) -> None:
        """Count a worker that ended in the midst of a start."""
        self._repeated.inc()

    def watch(self, listing: Callable[[], PoolListing]) -> None:
        """Have each scrape look at the pool; ``listing`` is called on the server's threads."""
        self.registry.register(_PoolState(listing))

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"mpsguard_pool_{name}", text, labels, registry=self.registry)


class _PoolState(Collector):
    """What the tiers and the workers are now."""

    def __init__(self, listing: Callable[[], PoolListing]) -> None:
        self._listing = listing

    def collect(self) -> Iterator[Metric]:
        """See `Collector`."""
        listing = self._listing()
        bytes_held = GaugeMetricFamily("mpsguard_pool_tier_bytes", "Bytes of images in a tier", labels=["tier"])
        budgets = GaugeMetricFamily("mpsguard_pool_tier_budget_bytes", "Bytes of a tier at most", labels=["tier"])
        for tier in Tier:
            bytes_held.add_metric([tier], sum(image.size for image in listing.images if image.tier is tier))
            budgets.add_metric([tier], listing.budgets.get(tier, 0))
        workers = GaugeMetricFamily("mpsguard_pool_workers", "Workers, by what they do", labels=["phase"])
        for phase in Phase:
            workers.add_metric([phase], sum(worker.phase is phase for worker in listing.workers))
        yield from (bytes_held, budgets, workers)
