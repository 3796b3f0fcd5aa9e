"""`nvidia-cuda-mps-control` commands answered through the guard as by a stock daemon, compared line by line."""

from collections.abc import Iterator, Mapping
from typing import Final

from tests.bench.core.bench import Bench, Measurement, Target
from tests.bench.core.client import Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding
from tests.bench.core.programs import Work
from tests.bench.core.replies import differing, mask
from tests.bench.results.schema import Row

COMMANDS: Final = (
    "get_server_list",
    "get_server_status {server}",
    "get_server_status 1",
    "get_server_status",
    "get_client_list {server}",
    "get_client_list 1",
    "get_device_client_list",
    "get_device_client_list {server}",
    "ps",
    "ps -p {server}",
    "ps -p {client}",
    "ps -p 1",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 50",
    "get_default_active_thread_percentage",
    "set_default_active_thread_percentage 150",
    "set_default_active_thread_percentage half",
    "set_active_thread_percentage {server} 80",
    "get_active_thread_percentage {server}",
    "get_active_thread_percentage 1",
    "set_default_device_pinned_mem_limit 0 1G",
    "get_default_device_pinned_mem_limit 0",
    "get_default_device_pinned_mem_limit 7",
    "set_device_pinned_mem_limit {server} 0 2G",
    "get_device_pinned_mem_limit {server} 0",
    "get_default_client_priority",
    "set_default_client_priority 1",
    "get_default_client_priority",
    "set_default_client_priority 7",
    "device_query",
    "device_query --csv",
    "no_such_command",
    "",
    "help",
    "shutdown_server 1",
    "terminate_client 1 2",
    "terminate_client {server} 2",
    "terminate_client {server} {client}",
    "get_server_list",
)
"""Reads, settings read back, wrong arguments, and at last a client terminated for good.

Not `quit` and not a real `shutdown_server`: they end what is being compared.
"""


def measure(bench: Bench) -> Iterator[Finding]:
    """Ask the same questions in the same order, in the same state: a fresh daemon with two clients in a loop."""
    with bench.stock() as stock:
        expected = _ask_all(bench, stock)
    with bench.guard() as guard:
        got = _ask_all(bench, guard)
    differences = [
        difference
        for command, theirs, ours in zip(COMMANDS, expected, got, strict=True)
        if (difference := differing(command, theirs, ours))
    ]
    row = Row(
        name=f"replies to {len(COMMANDS)} stock commands",
        value=sum(difference.lines for difference in differences),
        unit="lines",
        bar="0 lines differ",
        holds=not differences,
        runs=1,
    )
    yield Finding(row, "; ".join(map(str, differences)))


def _ask_all(bench: Bench, target: Target) -> list[list[str]]:
    with Clients() as clients:
        first, second = bench.workers(clients, target, 2, Work(seconds=120, controlled=True))
        first.go()
        second.go()
        servers = target.ui.servers()
        if len(servers) != 1:
            raise SuiteError(f"{target.name}: one MPS server was expected, there are {servers}")
        names = {servers[0]: "server", first.pid: "client 1", second.pid: "client 2"}
        return [_ask(target, command.format(server=servers[0], client=first.pid), names) for command in COMMANDS]


def _ask(target: Target, command: str, names: Mapping[int, str]) -> list[str]:
    """The masked reply, with the exit status as its last line."""
    reply = target.ui.ask(command)
    return [*(mask(line, names) for line in reply.lines), f"exit status {reply.exit_status}"]


MEASUREMENT: Final = Measurement("commands", "stock commands answer through the guard as they do without", measure)
