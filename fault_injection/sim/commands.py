"""The command table of the control daemon: words in, lines out.

Replies as recorded on driver 580.159.04; where the recordings are silent (missing arguments), the daemon of 535 was
asked. Every reply line is logged too, except that some complaints are logged only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fault_injection.sim import gpu
from fault_injection.sim.link import Status
from fault_injection.sim.settings import limit_as_text, limit_in_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fault_injection.sim.fleet import Fleet, Server
    from fault_injection.sim.link import Link
    from fault_injection.sim.settings import Defaults

_LEADING_INT = re.compile(r"[+-]?\d+")
_QUERY_ROW = "{:<14}  {:<13}  {:<40}  {:<32}  {}"
_QUERY_HEAD = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")
_PS_ROW = "{:<10}{:<10}{:<15}{:<26}{:<15}{:<15}"


class Call(NamedTuple):
    """One command line with everything its handler may look at."""

    arguments: list[str]
    fleet: Fleet
    defaults: Defaults
    note: Callable[[str], None]

    def number(self, index: int) -> int:
        """An argument as C's %d reads it: 0 where there is none."""
        found = _LEADING_INT.match(self.word(index))
        return int(found[0]) if found else 0

    def word(self, index: int) -> str:
        """An argument, empty where there is none."""
        return self.arguments[index] if index < len(self.arguments) else ""


class Command(NamedTuple):
    """How a command is answered."""

    run: Callable[[Call], Iterator[str]]
    setter: bool = False
    denied: tuple[str, ...] = ()


def refusal(uid: int) -> str:
    """What a setter tells a stranger."""
    return (
        f"Insufficient privileges for UID {uid}. Control deamon settings can only be modified by the user who started"
        " it or by the root user."
    )


def _linked(call: Call, pid: int) -> Iterator[str | Link]:
    server = call.fleet.find(pid)
    if server is None:
        yield f"Server {pid} not found"
    elif server.link is None:
        yield f"Server {pid} is <busy>"
    else:
        yield server.link


def _server_list(call: Call) -> Iterator[str]:
    for server in call.fleet.servers:
        yield str(server.pid)


def _server_status(call: Call) -> Iterator[str]:
    if not call.arguments:
        yield "A server PID is required"
        return
    server = call.fleet.find(call.number(0))
    if server is None:
        yield f"Server {call.number(0)} not found"
    elif server.link is None:
        yield "INITIALIZING"
    else:
        yield Status(server.link.status()).name


def _client_list(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number(0)):
        if isinstance(found, str):
            yield found
        else:
            yield from (str(pid) for pid in found.clients())


def _device_client_list(call: Call) -> Iterator[str]:
    chosen = [call.number(0)] if call.arguments else [server.pid for server in call.fleet.servers]
    for pid in chosen:
        for found in _linked(call, pid):
            if isinstance(found, str):
                yield found
                continue
            for device in found.devices():
                yield f"[{device.ordinal}] 00:00.0, {device.name}"
                yield from (f"{client}.{context}" for client, context in device.clients)


def _ps(call: Call) -> Iterator[str]:
    if call.word(0) == "-p":
        server = call.fleet.find(call.number(1))
        if server is None:
            yield from (f"Server {call.number(1)} not found",) * 2
            yield ""
            return
        chosen = [server]
    else:
        chosen = list(call.fleet.servers)
    if not chosen:
        yield "Server not found"
        return
    yield _PS_ROW.format("PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND")
    for server in chosen:
        yield from _ps_rows(server)


def _ps_rows(server: Server) -> Iterator[str]:
    if server.link is None:
        yield f"Server {server.pid} is <busy>"
        return
    for row in server.link.processes():
        try:
            namespace = str(Path(f"/proc/{row.pid}/ns/pid").stat().st_ino)
            command = Path(f"/proc/{row.pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            namespace, command = "0", ""
        yield _PS_ROW.format(row.pid, row.serial, server.pid, gpu.printed(row.uuid)[:22], namespace, command)


def _get_default_percentage(call: Call) -> Iterator[str]:
    yield f"{call.defaults.percentage:.1f}"


def _percentage(call: Call, text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0.0 < value <= 100.0:
        return value
    call.note("Invalid percentage, expected between (0.0, 100.0]")
    return None


def _set_default_percentage(call: Call) -> Iterator[str]:
    value = _percentage(call, call.word(0))
    if value is not None:
        call.defaults.percentage = value
    yield f"{call.defaults.percentage:.1f}"


def _get_percentage(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number(0)):
        yield found if isinstance(found, str) else f"{found.percentage():.1f}"


def _set_percentage(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number(0)):
        if isinstance(found, str):
            yield found
            continue
        value = _percentage(call, call.word(1))
        if value is not None:
            found.set_percentage(value)
        yield f"{found.percentage():.1f}"


def _get_default_limit(call: Call) -> Iterator[str]:
    yield call.defaults.pinned_limits.get(call.word(0) or "0", "No default pinned memory limit set for the device!")


def _set_default_limit(call: Call) -> Iterator[str]:
    call.note(f"set_default_device_pinned_mem_limit {call.word(0)} {call.word(1)}.")
    if limit_in_bytes(call.word(1)) is not None:
        call.defaults.pinned_limits[call.word(0)] = call.word(1)
    yield from ()


def _get_limit(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number(0)):
        yield found if isinstance(found, str) else limit_as_text(found.pinned_limit(call.word(1) or "0"))


def _set_limit(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number(0)):
        if isinstance(found, str):
            yield found
        elif (limit := limit_in_bytes(call.word(2))) is not None:
            found.set_pinned_limit(call.word(1), limit)


def _get_priority(call: Call) -> Iterator[str]:
    yield str(call.defaults.priority)


def _set_priority(call: Call) -> Iterator[str]:
    if call.number(0) not in (0, 1):
        yield "Invalid priority value - must be 0 or 1!"
        return
    call.defaults.priority = call.number(0)
    for server in call.fleet.servers:
        if server.link is not None:
            server.link.set_priority(call.defaults.priority)


def _start_server(call: Call) -> Iterator[str]:
    if call.word(0) != "-uid" or not _LEADING_INT.match(call.word(1)):
        yield "A user id (UID) is required to start a new server"
        return
    call.fleet.wanted.append(call.number(1))


def _shut_down_server(call: Call) -> Iterator[str]:
    server = call.fleet.find(call.number(0))
    if server is None:
        yield f"Server {call.number(0)} not found"
    elif call.word(1) == "-f":
        call.fleet.kill(server)
    else:
        call.fleet.retire(server)


def _terminate_client(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number(0)):
        if isinstance(found, str):
            yield found
            yield f"Server {call.number(0)} not found!"
            yield "1"
        elif not os.path.lexists(f"/proc/{call.number(1)}"):
            yield f"Invalid process {call.number(1)}!"
            yield "1"
        else:
            yield str(found.terminate(call.number(1)))


def _device_query(call: Call) -> Iterator[str]:
    words = [word for word in call.arguments if word != "--csv"]
    csv = len(words) < len(call.arguments)
    if words:
        server = call.fleet.find(call._replace(arguments=words).number(0))
        if server is None:
            yield f"Server {words[0]} not found"
            return
        yield from _query_rows(server.link.query() if server.link else [], csv=csv)
        return
    yield "Default"
    yield from _query_rows([(gpu.BUS, gpu.UUID_BYTES, gpu.NAME)], csv=csv)
    for server in call.fleet.servers:
        yield f"\nServer {server.pid}"
        yield from _query_rows(server.link.query() if server.link else [], csv=csv)


def _query_rows(devices: list[tuple[int, bytes, str]], *, csv: bool) -> Iterator[str]:
    yield ",".join(_QUERY_HEAD) if csv else _QUERY_ROW.format(*_QUERY_HEAD)
    for ordinal, (bus, uuid, name) in enumerate(devices):
        row = (str(ordinal), f"0000:00.{bus:02x}.00", gpu.printed(uuid), name, "N/A")
        yield ",".join(row) if csv else _QUERY_ROW.format(*row)


TABLE: dict[str, Command] = {
    "get_server_list": Command(_server_list),
    "get_server_status": Command(_server_status),
    "get_client_list": Command(_client_list),
    "get_device_client_list": Command(_device_client_list),
    "ps": Command(_ps),
    "get_default_active_thread_percentage": Command(_get_default_percentage),
    "set_default_active_thread_percentage": Command(_set_default_percentage, setter=True),
    "get_active_thread_percentage": Command(_get_percentage),
    "set_active_thread_percentage": Command(_set_percentage, setter=True),
    "get_default_device_pinned_mem_limit": Command(_get_default_limit),
    "set_default_device_pinned_mem_limit": Command(_set_default_limit, setter=True),
    "get_device_pinned_mem_limit": Command(_get_limit),
    "set_device_pinned_mem_limit": Command(_set_limit, setter=True),
    "get_default_client_priority": Command(_get_priority),
    "set_default_client_priority": Command(_set_priority, setter=True),
    "start_server": Command(_start_server, setter=True),
    "shutdown_server": Command(_shut_down_server, setter=True),
    "terminate_client": Command(_terminate_client, setter=True, denied=("800",)),
    "device_query": Command(_device_query),
}
AFTER_535 = frozenset({"get_server_status", "device_query"})
