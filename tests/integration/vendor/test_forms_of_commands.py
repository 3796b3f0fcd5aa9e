"""Commands as scripts, editors and people type them: our front and our guard answer as the vendor's, side by side."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.harness.waiting import wait_for
from tests.integration.peer import Peer
from tests.integration.vendor.site import Site, newest
from tests.vendor import VendorMps

pytestmark = [pytest.mark.vendor, pytest.mark.slow(seconds=20, reason="starts guards, and a program for each input")]

COMMANDS = [
    # argonne-lcf/user-guides, enable_mps_polaris.sh, where `id -u` says nothing
    "start_server -uid",
    # NVIDIA/k8s-device-plugin #490, #1105: the daemon's set-up and the plugin's health check
    "set_default_active_thread_percentage 33",
    "get_default_active_thread_percentage",
    # NVIDIA/k8s-device-plugin #594, #764
    "set_default_device_pinned_mem_limit 0 1000M",
    "get_default_device_pinned_mem_limit 0",
    # kubernetes-sigs/dra-driver-nvidia-gpu #124: its template's settings
    "set_default_active_thread_percentage 50",
    "set_default_device_pinned_mem_limit 1 2G",
    "get_default_device_pinned_mem_limit 1",
    # MPS quick start
    "ps",
    # NVIDIA/k8s-device-plugin #1595
    "get_server_list",
    "set_default_client_priority 1",
    "get_default_client_priority",
    # percent signs: FIELD case 12's kind
    "set_default_active_thread_percentage 40%",
    "get_default_active_thread_percentage",
    "no_such_command",
]
FORMS = {
    "a script": "{}\n",
    "a Windows editor": "{}\r\n",
    "an old Mac's, and a newline": "{}\r\r\n",
    "indented, and blanks at the end": "    {}   \n",
    "tabs": "\t{}\t\n",
    "isspace(3)": "{}\v\f\n",
}


class Odd(NamedTuple):
    """An input, and where the like was seen."""

    source: str
    text: str


ODD = [
    Odd("a here-document that ends without a newline", "get_default_client_priority\nget_server_list"),
    Odd("a file with carriage returns and no last newline", "get_default_client_priority\r\nget_server_list\r"),
    Odd("empty lines, as at the end of here-documents", "\n\nget_default_client_priority\n\n"),
    Odd("blanks alone", "   "),
    Odd("carriage returns alone", "\r\n\r\n"),
    Odd("nothing", ""),
    Odd("a comment", "# the share\nget_default_client_priority\n"),
    Odd("a shell's habit", "get_default_client_priority; get_server_list\n"),
    Odd("upper case", "GET_SERVER_LIST\nQuit\n"),
    Odd("people who look for help", "help\n?\n--help\nexit\n"),
    Odd("more words than the command has", "get_default_client_priority now\n"),
    Odd("a format", "%s%n%d\n"),
    Odd("a format among blanks", "get_default_client_priority %n\n"),
    Odd("a NUL, as of a program that sends its string's end", "get_default_client_priority\0\nget_server_list\0rest\n"),
    Odd("a byte-order mark", "\ufeffget_server_list\nget_default_client_priority\n"),
    Odd("a word of another language", "größe\n"),
    Odd("a no-break space", "get_default_client_priority\u00a0\nquit\u00a0\n"),
    Odd("a long word", "x" * 300 + "\nget_default_client_priority\n"),
    Odd("a very long word", "x" * 4000 + "\nget_default_client_priority\n"),
    Odd("many lines", "get_default_client_priority\n" * 200),
]


@pytest.fixture
def site(vendor_mps: VendorMps) -> Iterator[Site]:
    with Site(vendor_mps) as there:
        yield there


@pytest.fixture
def stock(site: Site) -> Path:
    """The pipe directory of the vendor's own daemon."""
    directory = site.root / "stock"
    directory.mkdir()
    variables = {"CUDA_MPS_LOG_DIRECTORY": str(directory)}
    assert site.run("-d", program=site.vendor, pipes=directory, variables=variables).returncode == 0
    return directory


def answers(site: Site, stock: Path, given: str) -> list[tuple[str, int]]:
    """Output and exit status: the vendor's front at its daemon and at our guard, and our front at both."""
    asked = [
        site.run(program=program, given=given, pipes=pipes)
        for program in (site.vendor, site.program)
        for pipes in (stock, site.pipes)
    ]
    return [(each.stdout, each.returncode) for each in asked]


def test_commands_in_every_form(site: Site, stock: Path) -> None:
    assert site.run("-d").returncode == 0
    for form in FORMS.values():
        theirs, *ours = answers(site, stock, "".join(form.format(command) for command in COMMANDS))
        assert ours == [theirs] * 3, form


def test_odd_input(site: Site, stock: Path) -> None:
    assert site.run("-d").returncode == 0
    for odd in ODD:
        theirs, *ours = answers(site, stock, odd.text)
        assert ours == [theirs] * 3, odd.source


@pytest.mark.parametrize("given", ["quit\r\n", "quit\r", "  quit -t 5 \r\n", "quit"])
@pytest.mark.parametrize("front", ["ours", "the vendor's"])
def test_quit_in_every_form(given: str, front: str) -> None:
    with Site(newest()) as site:
        assert site.run("-d").returncode == 0
        ended = site.run(program=site.program if front == "ours" else site.vendor, given=given)
        assert (ended.stdout, ended.stderr, ended.returncode) == ("", "", 0)
        wait_for("the end of all", lambda: not site.processes("mpsguard") and not site.processes("mps-control"))


def test_a_refusal_is_in_words_once_with_a_failing_exit(site: Site) -> None:
    """The vendor's front takes a connection that is just closed for success."""
    assert site.run("-d").returncode == 0
    for program in (site.vendor, site.program):
        refused = site.run(program=program, given="get_server_list \x1b[2J\nget_default_client_priority\n")
        assert len(refused.stdout.splitlines()) == 1, refused
        assert refused.returncode == 1
    assert (site.logs / "mpsguard.log").read_text().count("connection_refused") == 2
    assert site.run("get_default_client_priority").stdout == "0\n"


def test_a_line_that_would_end_the_vendors_daemon_does_not_reach_it(site: Site) -> None:
    """Any user may send one. The vendor's front cuts it into several commands of 4095 bytes."""
    assert site.run("-d").returncode == 0
    lane = site.processes("nvidia-cuda-mps-control -d")
    with Peer(site.pipes) as peer:
        peer.connect_as_command_line()
        peer.say_all(struct.pack("<q", 64 * 1024), b"x" * (64 * 1024 - 2) + b"\n\0")
        assert b"mpsguard: " in peer.hear()[0]
        assert peer.end_commands() == 1
    given = "x" * 5000 + "\nget_default_client_priority\n"
    assert site.run(program=site.vendor, given=given).stdout.endswith("\n0\n")
    refused = site.run(given=given)
    assert (refused.stdout, len(refused.stderr.splitlines()), refused.returncode) == ("", 1, 1)
    assert site.run("get_default_client_priority").stdout == "0\n"
    assert site.processes("nvidia-cuda-mps-control -d") == lane
