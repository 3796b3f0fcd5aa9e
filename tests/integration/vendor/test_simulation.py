"""The simulation answers as the vendor's control daemons do: every command, with odd values, and what follows.

What is compared: each message of the answer, the exit status, and what the daemon shows of its settings, those of its
server and its servers afterwards.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import pytest

from tests.integration.vendor.lockstep import Pair
from tests.integration.vendor.odd_values import NO_COMMANDS, PUBLIC, SERVERS, VALUES, sample
from tests.spellings import measured
from tests.vendor import VendorMps

pytestmark = [
    pytest.mark.vendor,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: other users' commands"),
]

QUERIES = (
    "get_server_list",
    "get_server_status",
    "get_client_list",
    "get_device_client_list",
    "ps",
    "get_default_active_thread_percentage",
    "get_active_thread_percentage",
    "get_default_device_pinned_mem_limit",
    "get_device_pinned_mem_limit",
    "get_default_client_priority",
)
DEFAULTS = (
    "set_default_active_thread_percentage",
    "set_default_device_pinned_mem_limit",
    "set_default_client_priority",
)
OF_SERVERS = ("set_active_thread_percentage", "set_device_pinned_mem_limit")
ACTIONS = ("start_server", "shutdown_server", "terminate_client")
COMMANDS = (*QUERIES, *DEFAULTS, *OF_SERVERS, *ACTIONS)
BEHIND_A_SERVER = (*OF_SERVERS, "get_device_pinned_mem_limit", "terminate_client")

EVERY = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["sample", "every"])
"""Whether all odd values are tried, or a sample of them: a campaign, which takes minutes."""

BEFORE = (
    "set_default_active_thread_percentage 77",
    "set_default_client_priority 1",
    *(f"set_default_device_pinned_mem_limit {device} 7M" for device in (0, 1)),
    "set_default_device_pinned_mem_limit 31 0",
    "set_active_thread_percentage SERVER 66",
    *(f"set_device_pinned_mem_limit SERVER {device} 6M" for device in (0, 1)),
)
AFTER = (
    "get_default_active_thread_percentage",
    "get_default_client_priority",
    *(f"get_default_device_pinned_mem_limit {device}" for device in (0, 1, 31)),
    "get_active_thread_percentage SERVER",
    *(f"get_device_pinned_mem_limit SERVER {device}" for device in (0, 1, 31)),
    "get_server_list",
)


@pytest.fixture
def pair(vendor_mps: VendorMps, request: pytest.FixtureRequest) -> Iterator[Pair]:
    with Pair(vendor_mps, owner=0, clients=2) as both:
        both.properties = request.node.user_properties
        yield both


def compare(pair: Pair, commands: list[str], *, at_once: int = 1) -> None:
    """Give each command with the same settings before it, and compare answers and settings.

    ``at_once``: how many that change nothing share a session.
    """
    commands = list(filter(pair.means_the_same, commands))
    differences = []
    for batch in batched(commands, at_once):
        if pair.differences(batch[0], BEFORE, (*batch[1:], *AFTER)):
            differences += [found for each in batch for found in pair.differences(each, BEFORE, AFTER)]
    pair.properties.append(("compared", len(commands)))
    assert not differences, "\n".join([f"{len(differences)} of {len(commands)}", *differences[:5]])


def batched(commands: list[str], size: int) -> list[list[str]]:
    return [commands[start : start + size] for start in range(0, len(commands), size)]


def ends_nothing(command: str) -> bool:
    """Whether a command leaves the servers as they are: one that ends or starts a server is tried by itself."""
    name, _, text = command.partition(" ")
    return name not in ("start_server", "shutdown_server") or not text.startswith(
        ("-uid ", "SERVER", "+SERVER", "0SERVER")
    )


def values(number: int, *, every: bool) -> tuple[str, ...]:
    """The odd values for a command with this number."""
    return VALUES if every else sample(number)


@pytest.mark.slow(seconds=4, reason="hundreds of commands to two daemons")
@EVERY
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_with_odd_values(pair: Pair, name: str, every: bool) -> None:
    odd = values(COMMANDS.index(name), every=every)
    commands = [each for value in odd if ends_nothing(each := f"{name} {value}")]
    compare(pair, commands, at_once=1 if name in (*DEFAULTS, *OF_SERVERS) else 40)


@EVERY
@pytest.mark.parametrize("name", BEHIND_A_SERVER)
def test_odd_values_behind_a_server(pair: Pair, name: str, every: bool) -> None:
    commands = [f"{name} SERVER {value}" for value in values(BEHIND_A_SERVER.index(name), every=every)]
    compare(pair, commands, at_once=1 if name in OF_SERVERS else 40)


@EVERY
def test_odd_limits_of_a_device(pair: Pair, every: bool) -> None:
    each = ("set_default_device_pinned_mem_limit 0", "set_device_pinned_mem_limit SERVER 0")
    compare(pair, [f"{name} {value}" for at, name in enumerate(each) for value in values(at, every=every)])


@EVERY
def test_odd_devices(pair: Pair, every: bool) -> None:
    each = ("set_default_device_pinned_mem_limit", "set_device_pinned_mem_limit SERVER")
    compare(pair, [f"{name} {value} 3G" for at, name in enumerate(each) for value in values(at, every=every)])


def test_every_spelling_of_a_server(pair: Pair) -> None:
    behind = ("", " 0", " 33", " 33x", " x", " 0 3G", " x 3G", " 0 x", " CLIENT1", " 1", " 999999", " -1", " -f")
    queries = (*QUERIES, "ps -p", "ps -q", "ps -p ", "ps p")
    for names, at_once in ((queries, 40), ((*OF_SERVERS, "terminate_client"), 1)):
        commands = [f"{name} {server}{more}" for name in names for server in SERVERS for more in behind]
        # The second client shall live.
        compare(pair, [each for each in commands if each[-7:] != "CLIENT1" or "terminate" not in each], at_once=at_once)


def test_what_is_no_command(pair: Pair) -> None:
    compare(pair, list(NO_COMMANDS))


def test_what_the_public_writes(pair: Pair) -> None:
    compare(pair, [command for _, command in PUBLIC])


def test_clients_and_their_end(pair: Pair) -> None:
    tables = ("ps", "ps -f", "ps -p SERVER", "get_client_list SERVER", "get_device_client_list", "ps -p 1")
    for command in (*tables, "terminate_client SERVER CLIENT0", *tables, "terminate_client SERVER 1", *tables):
        # The order of clients that came at once is chance, and so are their numbers.
        answers = [
            sorted(re.sub(r"(CLIENT\d +)\d", r"\1#", line) for line in side.ask(command).lines)
            for side in (pair.vendors, pair.ours)
        ]
        assert answers[0] == answers[1], command
        if command.startswith("terminate"):
            pair.all_have("its end", lambda side: side.ask("get_client_list SERVER").lines == ("CLIENT1",))


@pytest.mark.parametrize("owner", [0, 1000])
@pytest.mark.parametrize("uid", [0, 1000])
def test_who_may_give_commands(vendor_mps: VendorMps, owner: int, uid: int) -> None:
    """By the public socket: a stranger, the server's owner, and root."""
    behind = ("", " 1", " SERVER", " SERVER 1", " 0 1G", " SERVER 0 1G", " x", " SERVER 101")
    commands = [f"{name}{text}" for name in (*QUERIES, *DEFAULTS, *OF_SERVERS, "terminate_client") for text in behind]
    commands += [f"start_server{text}" for text in ("", " -uid", f" -uid {owner}")]
    commands += ["shutdown_server 1", "quit", "quit -t 3", "foo", "set_default_client_priority 7"]
    with Pair(vendor_mps, owner=owner) as pair:
        differences = [found for each in commands for found in pair.differences(each, (), AFTER, uid=uid, public=True)]
        assert not differences, "\n".join(differences[:5])
        assert pair.differences("shutdown_server SERVER -f", uid=uid, public=True) == []


def test_a_server_of_another_user(vendor_mps: VendorMps) -> None:
    """The idle one makes way (the command: NVIDIA/nvidia-docker #1562)."""
    with Pair(vendor_mps, owner=0) as pair:
        assert pair.differences("start_server -uid 5") == []
        pair.all_have("the other one", lambda side: side.ask("get_server_list").lines not in ((), ("SERVER",)))


@pytest.mark.parametrize("text", ["", " -f", " -f x", " x", " -x", " f", "x -f", " -ff"])
def test_the_end_of_a_server(vendor_mps: VendorMps, text: str) -> None:
    with Pair(vendor_mps, owner=0) as pair:
        assert pair.differences(f"shutdown_server SERVER{text}") == []
        pair.all_have("its end", lambda side: not side.ask("get_server_list").lines)


@pytest.mark.parametrize(
    "text", ["", " ", " x", " -t", " -t 3", " -t3", " -t x", " -t -1", " t 3", " -f", " -t 0", " -t 3 x"]
)
@pytest.mark.parametrize("has_server", [False, True])
def test_quit(vendor_mps: VendorMps, text: str, has_server: bool) -> None:
    with Pair(vendor_mps, owner=0 if has_server else None) as pair:
        ended = [side.front(f"quit{text}\n".encode()) for side in (pair.vendors, pair.ours)]
        assert ended[0] == ended[1]
        pair.all_have("its end", lambda side: side.is_gone())
        # And a question after that.
        assert pair.vendors.front(b"ps\n") == pair.ours.front(b"ps\n")


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\n",
        b"\n\n\n",
        b"ps",
        b"ps\n",
        b"ps\r\nget_default_client_priority\r\n",
        b"  get_default_client_priority  \n\tget_server_list\n\nset_default_active_thread_percentage 40",
        b"set_default_active_thread_percentage\t33.35\nget_default_active_thread_percentage\n",
        b"foo\xff\n\xfe\n",
        b"\xef\xbb\xbfget_default_client_priority\n",
        b"g\0et_server_list\nget_default_client_priority\n",
        b"\0\nget_default_client_priority\n",
        b"get_default_client_priority" + b" " * 4100 + b"\n",
        b"x" * 4094 + b"\nget_default_client_priority\n",
        b"x" * 4095 + b"\nget_default_client_priority\n",
        b"x" * 4096 + b"\n",
        b"x" * 9000,
        b"get_default_client_priority\n" * 300,
    ],
    ids=lambda given: repr(given[:24]),
)
def test_what_the_command_line_reads(vendor_mps: VendorMps, given: bytes) -> None:
    with Pair(vendor_mps) as pair:
        assert pair.vendors.front(given) == pair.ours.front(given)
        assert pair.differences("ps", after=[each for each in AFTER if "SERVER" not in each]) == []


def test_the_table_of_spellings_is_what_the_daemons_show(pair: Pair) -> None:
    for row in measured():
        query = f"get_default_{row.setting} {row.device}".strip()
        # A refused value leaves what was there before.
        before = {"active_thread_percentage": ("77.0",), "client_priority": ("1",)}.get(row.setting, ())
        shown = before if row.shown is None else (row.shown,) if row.shown else ()
        for side in (pair.vendors, pair.ours):
            clear = (*BEFORE, "set_default_device_pinned_mem_limit 0 0", "set_default_device_pinned_mem_limit 1 0")
            side.ask(*clear, f"set_default_{row.setting} {row.arguments}")
            assert side.ask(query).lines == shown, row
