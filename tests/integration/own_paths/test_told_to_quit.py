"""What a script removes that has told the daemon to quit stays removed, as with the stock daemon."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

pytestmark = pytest.mark.slow(seconds=10, reason="starts guards of two domains")


@contextmanager
def quitting(guarded: Guarded) -> Iterator[subprocess.Popen[bytes]]:
    """The first domain was told to quit, and waits for its client."""
    asking = subprocess.Popen([guarded.control], stdin=subprocess.PIPE, env=guarded.environment)
    with asking:
        assert asking.stdin is not None
        asking.stdin.write(b"quit\n")
        asking.stdin.close()
        wait_for("it was told", lambda: guarded.events("lane_told_to_quit"))
        yield asking


def test_no_path_of_a_domain_that_quits_is_made_again() -> None:
    with Guarded(domain='gpus = ["0"]') as guarded:
        second = guarded.root / "mps2"
        with guarded.config.open("a") as config:
            config.write(
                f"""
                [[domain]]
                name = "second"
                gpus = ["1"]
                pipe_directory = "{second}"
                control_binary = "{guarded.control}"
                simulated = true
                """
            )
        guarded.start()
        client = guarded.client()
        client.expect("started")
        with quitting(guarded) as asking:
            shutil.rmtree(guarded.public)
            shutil.rmtree(guarded.log)
            # All paths are looked at in one round, that of the first domain before.
            shutil.rmtree(second)
            wait_for("the other domain's directory", (second / "control").exists)
            client.process.terminate()
            assert asking.wait() == 0
        ended = [event["domain"] for event in wait_for("its end", lambda: guarded.events("domain_ended"))]
        assert ended == ["default"]
        assert there(guarded.public, guarded.log) == []
        assert {event["data"]["path"] for event in guarded.events("path_mended")} == {str(second)}
        assert guarded.events("path_lost") == []


def test_nothing_of_a_guard_that_quits_is_made_again() -> None:
    with Guarded() as guarded:
        guarded.start()
        client = guarded.client()
        client.expect("started")
        with quitting(guarded) as asking:
            shutil.rmtree(guarded.public)
            client.process.terminate()
            assert asking.wait() == 0
        assert guarded.guard.wait() == 0
        assert there(guarded.public) == []


def there(*paths: Path) -> list[Path]:
    return [path for path in paths if path.exists()]
