"""The page of a real guard: what any user may read at its address, and what the guard's group alone on its socket."""

from __future__ import annotations

import http.client
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.guard.daemon.http_service import socket_path
from tests.harness.free_port import free_port
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

pytestmark = pytest.mark.slow(seconds=10, reason="starts a guard and clients")

MARK = "a-command-of-some-user"
STRANGER = 65534


class Local(http.client.HTTPConnection):
    """A connection to a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def get(connection: http.client.HTTPConnection, path: str, host: str = "localhost") -> http.client.HTTPResponse:
    connection.request("GET", path, headers={"Host": host})
    return connection.getresponse()


def text(connection: http.client.HTTPConnection, path: str) -> str:
    answer = get(connection, path)
    assert answer.status == 200
    return answer.read().decode()


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def guarded(port: int) -> Iterator[Guarded]:
    with Guarded() as running:
        running.config.write_text(running.config.read_text().replace('"off"', f'"127.0.0.1:{port}"'))
        running.start()
        wait_for("the address", lambda: running.events("http_served"))
        script = f'exec -a {MARK} {sys.executable} -m fault_injection.sim.client "$@"'
        neighbour = running.program(["bash", "-c", script, "-"])
        neighbour.expect("started")
        running.program(["bash", "-c", script, "-", "--fault", "kill", "--after", "0.1"]).wait()
        # Without a driver the crash ends it, too, and would end one that comes before; the first verdict is revised.
        neighbour.wait()
        wait_for(
            "the verdict",
            lambda: [each for each in running.asked("incidents")["incidents"] if each["culprit"] and each["victims"]],
        )
        running.program(["bash", "-c", script, "-"]).expect("started")
        yield running


def local(guarded: Guarded) -> Local:
    return Local(socket_path(str(guarded.run_directory)))


def tcp(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=30)


def overview(connection: http.client.HTTPConnection, shows: str = "ACTIVE") -> str:
    """The page once it shows something: it is made again after a second."""
    return wait_for("the page", lambda: seen if shows in (seen := text(connection, "/")) else None)


def test_both_show_clients_and_incidents_and_the_socket_alone_commands(guarded: Guarded, port: int) -> None:
    (client,) = wait_for("the client that came last", guarded.clients)
    (incident,) = guarded.asked("incidents")["incidents"]
    for connection, has_commands in ((local(guarded), True), (tcp(port), False)):
        seen = overview(connection, f">{client['process']['pid']}<")
        assert incident["id"] in seen
        assert (MARK in seen) == has_commands
        assert (f"{incident['culprit']['pid']} {MARK}" in seen) == has_commands


def test_a_healthy_guard_has_no_warning_on_its_page(guarded: Guarded) -> None:
    seen = overview(local(guarded), "Healthy")
    assert "not yet" not in seen
    assert 'class="doubt' not in seen


def test_the_report_with_its_timeline_is_on_the_socket_alone(guarded: Guarded, port: int) -> None:
    (link,) = re.findall(r'href="(incidents/[^"]+)"', overview(local(guarded)))
    report = text(local(guarded), f"/{link}")
    assert "<svg" in report
    assert MARK in report
    assert get(tcp(port), f"/{link}").status == 403
    assert get(local(guarded), "/incidents/none-such").status == 404
    assert get(local(guarded), f"/incidents/{'x' * 5000}").status == 404


def test_every_page_forbids_scripts_frames_and_other_sites(guarded: Guarded, port: int) -> None:
    (link,) = re.findall(r'href="(incidents/[^"]+)"', overview(local(guarded)))
    for connection, path in ((tcp(port), "/"), (local(guarded), "/"), (local(guarded), f"/{link}")):
        headers = get(connection, path).headers
        assert headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'sha256-")
        assert "script-src" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *[(host, 200) for host in ("localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080", "[::1]")],
        *[(host, 421) for host in ("rebound.example:8080", "localhost.example", "127.0.0.1.example")],
    ],
)
def test_a_site_that_gives_its_name_our_address_reads_nothing(guarded: Guarded, host: str, status: int) -> None:
    for path in ("/", "/metrics", "/livez"):
        assert get(local(guarded), path, host).status == status


def test_a_flood_of_readers_takes_no_more_of_the_loop_than_a_look_a_second(port: int, guarded: Guarded) -> None:
    begun = time.monotonic()
    moments = {re.findall(r"[-\d]+ [:\d]+\.\d+ UTC", text(tcp(port), "/"))[0] for _ in range(60)}
    assert len(moments) <= time.monotonic() - begun + 2


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_another_user_cannot_open_the_socket(guarded: Guarded) -> None:
    path = socket_path(str(guarded.run_directory))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    asked = f"import socket; socket.socket(socket.AF_UNIX).connect({str(path)!r})"
    done = subprocess.run(
        ["/usr/bin/python3", "-c", asked],
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "PermissionError: [Errno 13]" in done.stderr.splitlines()[-1]


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="gives a file another group")
def test_the_group_may_open_it_and_it_goes_with_the_guard() -> None:
    with Guarded() as running:
        path = socket_path(str(running.run_directory))
        running.config.write_text(running.config.read_text().replace("[guard]", '[guard]\ngroup = "nogroup"'))
        running.start()
        assert (stat.S_IMODE(path.stat().st_mode), path.stat().st_gid) == (0o660, STRANGER)
        # One that is killed leaves its name behind; the next one takes its place.
        running.kill()
        running.start()
        assert get(local(running), "/livez").status == 200
        assert running.stop() == 0
        assert not path.exists()
