"""A lane over the vendor's own control daemon with servers that do not serve: stand-ins, as there is no GPU.

The control daemon answers every command all the while.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.integration.guarded import Guarded
from tests.integration.peer import CLIENT, CREDENTIALS, Peer
from tests.vendor import VendorMps

pytestmark = pytest.mark.vendor


@contextmanager
def guarded_by(vendor_mps: VendorMps, server: str) -> Iterator[Guarded]:
    """A guard over the vendor's daemon, which starts a shell script as its server."""
    path = vendor_mps.environment(vendor_mps.control, vendor_mps.control)["PATH"]
    with Guarded(vendor_mps.control) as guarded:
        programs = guarded.root / "bin"
        programs.mkdir()
        program = programs / "nvidia-cuda-mps-server"
        program.write_text(f"#!/bin/sh\n{server}\n")
        program.chmod(0o755)
        guarded.environment["PATH"] = f"{programs}{os.pathsep}{path}"
        guarded.start()
        guarded.lane_in("ACTIVE")
        try:
            yield guarded
        finally:
            # The control daemon would wait for one that is stopped.
            program.write_text("#!/bin/sh\nexit 1\n")
            for each in guarded.lane()["servers"]:
                os.kill(each["process"]["pid"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("server", "words"),
    [
        ("exit 1", "exited with status 1"),
        ("exit 0", "exited with status 0"),
        ("kill -9 $$", "exited with status 0"),
        ("sleep 1; exit 3", "exited with status 3"),
        ("exec sleep 60", "waited for a server"),
        ("kill -STOP $$", "stopped"),
    ],
    ids=["at once", "without a word", "killed", "after a second", "silent", "stopped"],
)
def test_no_server_that_does_not_serve_is_taken_for_a_lane_that_does(
    vendor_mps: VendorMps, server: str, words: str
) -> None:
    with guarded_by(vendor_mps, server) as guarded, Peer(guarded.public) as peer:
        assert peer.hear()[0]
        peer.say_all(CREDENTIALS, CLIENT)
        report = guarded.lane_in("FAILING")
        assert words in report["reason"]
        assert [guarded.ctl("check", "--for", each).returncode for each in ("ready", "slurm", "npd")] == [1, 1, 1]
        assert guarded.ctl("status").returncode == 3
        assert [event for event in guarded.events("lane_state") if event["data"]["state"] == "FAILING"]
