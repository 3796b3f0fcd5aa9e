"""What a real pool tells Prometheus."""

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from mpsguard.images.pool.errors import PoolError
from mpsguard.images.store.store import ImageStore
from tests.harness.free_port import free_port
from tests.harness.waiting import wait_for
from tests.integration.pool.running import MIB, running


def scraped(port: int) -> dict[str, float]:
    """Each series that is not 0, by name and the values of its labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert "_created" not in text
    return {
        "/".join([sample.name.removeprefix("mpsguard_pool_"), *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.value and not sample.name.endswith(("_bucket", "_sum"))
    }


def test_requests_evictions_and_starts_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("POOL_TEST", str(tmp_path))
    (tmp_path / "start-1").touch()
    options = ["--host-memory", "8M", "--metrics", f"127.0.0.1:{port}"]
    options += ["--prepare", "tests.integration.pool.prepared:prepare", "--minimum", "1", "--maximum", "2"]
    with running(tmp_path, *options) as pool, ImageStore(pool.store) as store, pool.connect() as mine:
        for name in "ab":
            pool.make(name, 6 * MIB)
        with store.open("a") as a, store.open("b") as b:
            mine.hold(store, a).close()
            with mine.hold(store, a), pytest.raises(PoolError, match="in use"):
                mine.hold(store, b)
            mine.hold(store, b).close()
            with mine.start(store, b) as served:
                assert served.recv(100)
            with pytest.raises(PoolError, match="not for me"):
                mine.start(store, b, b"refuse")
        wait_for("a worker that waits", lambda: scraped(port).get("workers/waiting") == 1)
        found = scraped(port)
    assert found == {
        "images_requested_total/hit/host": 3,
        "images_requested_total/miss/host": 2,
        "images_requested_total/refused/host": 1,
        "images_evicted_total/host": 1,
        "starts_total/started": 1,
        "starts_total/refused": 1,
        "starts_repeated_total": 1,
        "start_seconds_count": 1,
        "tier_bytes/host": 6 * MIB,
        "tier_budget_bytes/host": 8 * MIB,
        "workers/waiting": 1,
    }
