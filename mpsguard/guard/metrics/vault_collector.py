"""Prometheus collector for the vault's counters, which are read at each scrape."""

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mpsguard.vault.server.counters import Counters

_TOTALS: Final = {
    "regions_made": "Regions given to the vault",
    "regions_opened": "Times a region's descriptors were handed out",
    "regions_released": "Regions taken out by their writer or by command",
    "regions_expired": "Regions dropped with an expired session",
    "regions_lost": "Regions not found again after a restart of the guard",
    "fences": "Times a writer's lease ended",
    "promotions": "Times a standby was made the writer",
    "early_deaths": "Promoted writers that ended, not in order, within 10 s of their promotion",
    "connections_made": "Connections accepted",
}
_NOW: Final = {
    "connections": "Connections open now",
    "sessions": "Sessions held now",
    "regions": "Regions held now",
    "chunks": "Descriptors of memory held now",
    "bytes": "Bytes of memory held now",
    "unkept": "Descriptor bundles without a storage now: they would not outlive the guard",
}


class VaultMetrics(Collector):
    """Collects the counters of the vault; none while there is no vault."""

    def __init__(self, counters: Callable[[], Counters | None]) -> None:
        self._counters = counters

    def collect(self) -> Iterator[Metric]:
        """See `Collector`; called on a thread of the metrics server."""
        counters = self._counters()
        if counters is None:
            return
        for name, text in _TOTALS.items():
            yield CounterMetricFamily(f"mpsguard_vault_{name}", text, value=getattr(counters, name))
        for name, text in _NOW.items():
            yield GaugeMetricFamily(f"mpsguard_vault_{name}", text, value=getattr(counters, name))
        refusals = CounterMetricFamily("mpsguard_vault_refusals", "Requests refused, by code", labels=["code"])
        for code, count in counters.refusals.items():
            refusals.add_metric([code], count)
        yield refusals
