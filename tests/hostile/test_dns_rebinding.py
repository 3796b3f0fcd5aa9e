"""A web site that gives its own name the guard's address: a browser beside the guard reads nothing of it."""

import http.client
import socket
from collections.abc import Iterator

import pytest

from tests.harness.free_port import free_port
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded

pytestmark = pytest.mark.slow(seconds=5, reason="attacks a real guard")


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    number = free_port()
    with Guarded() as guarded:
        names = 'metrics_names = ["mpsguard.monitoring.svc"]'
        address = f'"127.0.0.1:{number}"\n{names}'
        guarded.config.write_text(guarded.config.read_text().replace('"off"', address))
        guarded.start()
        wait_for("the address", lambda: guarded.events("http_served"))
        yield number


def status(port: int, host: str | None, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest("GET", path, skip_host=True)
    if host is not None:
        connection.putheader("Host", host)
    connection.endheaders()
    try:
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("path", ["/", "/metrics", "/livez"])
@pytest.mark.parametrize(
    "host", ["rebound.example:{port}", "localhost.example", "127.0.0.1.example", "a@localhost:1:2"]
)
def test_its_name_is_not_answered(port: int, host: str, path: str) -> None:
    assert status(port, host.format(port=port), path) == 421


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1:{port}", "localhost", "LOCALHOST.:{port}", "[::1]", "10.0.0.7:{port}", None),
        *("mpsguard.monitoring.svc:{port}", socket.gethostname()),
    ],
)
def test_addresses_and_names_of_the_machine_are(port: int, host: str | None) -> None:
    for path in ("/", "/metrics", "/livez"):
        assert status(port, host and host.format(port=port), path) == 200
