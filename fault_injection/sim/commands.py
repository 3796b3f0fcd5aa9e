"""The command table of the control daemon: a line in, lines out.

Replies as the daemons of 535 and 550 give them (tests/integration/vendor/test_simulation.py compares each), and as
recorded on driver 580.159.04 (`driver.py`). Every reply line is logged too; some complaints are logged only.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fault_injection.sim import gpu, scan
from fault_injection.sim.link import Status
from fault_injection.sim.scan import Scanner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fault_injection.sim.driver import Driver
    from fault_injection.sim.fleet import Fleet, Server
    from fault_injection.sim.link import Link
    from fault_injection.sim.settings import Defaults

_DEVICES = 32
_NO_LIMIT = "No default pinned memory limit set for the device!"
_PERCENTAGES = "Invalid percentage, expected between (0.0, 100.0]"
_QUERY_ROW = "{:<14}  {:<13}  {:<40}  {:<32}  {}"
_QUERY_HEAD = ("Device Ordinal", "PCI IDs", "UUID", "Name", "Attributes")
_PS_HEAD = ("PID", "ID", "SERVER", "STATUS", "DEVICE", "NAMESPACE", "PRIORITY", "COMMAND")
_PS_WIDTHS = (10, 10, 15, 15, 26, 15, 15, 15)


class Call(NamedTuple):
    """One command line with everything its handler may look at."""

    text: str
    """What follows the command's name."""
    uid: int
    """Of the sender."""
    privileged: bool
    """Whether it came to the privileged socket, as commands of root and of the daemon's own user do."""
    fleet: Fleet
    defaults: Defaults
    driver: Driver
    note: Callable[[str], None]

    def number(self) -> int:
        """The first argument as %d reads it: 0 where there is none."""
        return Scanner(self.text).integer() or 0

    def may_not_set(self) -> str | None:
        """What a stranger is told that sets a default: from 550 on, one that did not come to the privileged socket."""
        reason = self.driver.refusals.defaults
        return None if reason is None or self.privileged else self._refusal(reason)

    def may_not_touch(self, owner: int, reason: str | None) -> str | None:
        """What a stranger is told that is about to touch a server: neither its owner nor root."""
        return None if reason is None or self.uid in (0, owner) else self._refusal(reason)

    def _refusal(self, reason: str) -> str:
        return f"Insufficient privileges for UID {self.uid}" + (f". {reason}" if reason else "")


def _linked(call: Call, pid: int) -> Iterator[str | Link]:
    server = call.fleet.find(pid)
    if server is None:
        yield f"Server {pid} not found"
    elif server.link is None:
        yield f"Server {pid} is <busy>"
    else:
        yield server.link


def _settable(call: Call, pid: int) -> Iterator[str | Link]:
    """The server, if the sender may change what is set there."""
    server = call.fleet.find(pid)
    refused = server and call.may_not_touch(server.uid, call.driver.refusals.settings)
    if refused:
        yield refused
    else:
        yield from _linked(call, pid)


def _server_list(call: Call) -> Iterator[str]:
    for server in call.fleet.servers:
        yield str(server.pid)


def _server_status(call: Call) -> Iterator[str]:
    pid = Scanner(call.text).integer()
    if pid is None:
        yield "A server PID is required"
        return
    server = call.fleet.find(pid)
    if server is None:
        yield f"Server {pid} not found"
    elif server.link is None:
        yield "INITIALIZING"
    else:
        yield Status(server.link.status()).name


def _client_list(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number()):
        if isinstance(found, str):
            yield found
        else:
            yield from (str(pid) for pid in found.clients())


def _device_client_list(call: Call) -> Iterator[str]:
    asked = call.number()
    for pid in [asked] if asked else [server.pid for server in call.fleet.servers]:
        for found in _linked(call, pid):
            if isinstance(found, str):
                yield found
                continue
            for device in found.devices():
                yield f"[{device.ordinal}] 00:00.0, {device.name}"
                yield from (f"{client}.{context}" for client, context in device.clients)


def _ps(call: Call) -> Iterator[str]:
    letter, pid = Scanner(call.text).option()
    chosen = list(call.fleet.servers)
    if letter == "p":
        server = call.fleet.find(pid)
        if server is None:
            yield f"Server {pid} not found"
            yield f"Server {pid} not found\n"
            return
        chosen = [server]
    if not chosen:
        yield "Server not found"
        return
    full = letter == "f"
    rows = [row for server in chosen for row in _ps_rows(server)]
    if any(isinstance(row, tuple) for row in rows):
        yield _ps_line(_PS_HEAD, call.driver, full=full)
    for row in rows:
        yield row if isinstance(row, str) else _ps_line(row, call.driver, full=full)


def _ps_rows(server: Server) -> Iterator[str | tuple[str, ...]]:
    if server.link is None:
        yield f"Server {server.pid} is <busy>"
        return
    for row in server.link.processes():
        try:
            namespace = str(Path(f"/proc/{row.pid}/ns/pid").stat().st_ino)
            command = Path(f"/proc/{row.pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
        except OSError:
            namespace, command = "0", ""
        uuid = gpu.printed(row.uuid)[:22]
        yield str(row.pid), str(row.serial), str(server.pid), "ACTIVE", uuid, namespace, "NORMAL", command


def _ps_line(cells: tuple[str, ...], driver: Driver, *, full: bool) -> str:
    """A line of `ps`: priority and status, if the driver has one, are shown with -f alone."""
    line = ""
    for name, width, cell in zip(_PS_HEAD, _PS_WIDTHS, cells, strict=True):
        if name not in ("STATUS", "PRIORITY") or (full and (name == "PRIORITY" or driver.client_status)):
            line += cell.ljust(width)
    return line


def _get_default_percentage(call: Call) -> Iterator[str]:
    yield f"{call.defaults.percentage:.1f}"


def _percentage(call: Call, value: float) -> float | None:
    if 0.0 < value <= 100.0:
        return value
    call.note(_PERCENTAGES)
    return None


def _set_default_percentage(call: Call) -> Iterator[str]:
    refused = call.may_not_set()
    if refused:
        yield refused
        return
    value = _percentage(call, Scanner(call.text).real())
    if value is not None:
        call.defaults.percentage = value
    yield f"{call.defaults.percentage:.1f}"


def _get_percentage(call: Call) -> Iterator[str]:
    for found in _linked(call, call.number()):
        yield found if isinstance(found, str) else f"{found.percentage():.1f}"


def _set_percentage(call: Call) -> Iterator[str]:
    arguments = Scanner(call.text)
    for found in _settable(call, arguments.integer() or 0):
        if isinstance(found, str):
            yield found
            continue
        value = _percentage(call, arguments.real())
        if value is not None:
            found.set_percentage(value)
        yield f"{found.percentage():.1f}"


def _device(call: Call, arguments: Scanner) -> str | None:
    """The device that comes next: the first one where there is no number, or None if there is none such.

    Of branches that know UUIDs a word; of the others the number at its beginning, and the rest of it is the value.
    """
    if call.driver.named_devices and (named := arguments.word_of("GPU-", "MIG-")):
        return named
    ordinal = arguments.integer() or 0
    if 0 <= ordinal < _DEVICES:
        return str(ordinal)
    call.note("Invalid device ordinal!")
    return None


def _get_default_limit(call: Call) -> Iterator[str]:
    device = _device(call, Scanner(call.text))
    limit = call.defaults.pinned_limits.get(device) if device is not None else None
    if limit is not None:
        yield scan.limit_as_text(limit)
    elif call.driver.tells_no_limit:
        yield _NO_LIMIT
    else:
        call.note(_NO_LIMIT)


def _set_default_limit(call: Call) -> Iterator[str]:
    refused = call.may_not_set()
    if refused:
        yield refused
        return
    arguments = Scanner(call.text)
    device = _device(call, arguments)
    limit = scan.limit_in_bytes(arguments.word())
    if device is not None and limit:
        call.defaults.pinned_limits[device] = limit
    elif device is not None:
        call.defaults.pinned_limits.pop(device, None)


def _get_limit(call: Call) -> Iterator[str]:
    arguments = Scanner(call.text)
    for found in _linked(call, arguments.integer() or 0):
        if isinstance(found, str):
            yield found
            continue
        device = _device(call, arguments)
        if device is not None and (limit := found.pinned_limit(device)):
            yield scan.limit_as_text(limit)


def _set_limit(call: Call) -> Iterator[str]:
    arguments = Scanner(call.text)
    for found in _settable(call, arguments.integer() or 0):
        if isinstance(found, str):
            yield found
            continue
        device = _device(call, arguments)
        if device is not None:
            found.set_pinned_limit(device, scan.limit_in_bytes(arguments.word()))


def _get_priority(call: Call) -> Iterator[str]:
    yield str(call.defaults.priority)


def _set_priority(call: Call) -> Iterator[str]:
    refused = call.may_not_set()
    if refused:
        yield refused
        return
    if call.number() not in (0, 1):
        yield "Invalid priority value - must be 0 or 1!"
        return
    call.defaults.priority = call.number()
    for server in call.fleet.servers:
        if server.link is not None:
            server.link.set_priority(call.defaults.priority)


def _start_server(call: Call) -> Iterator[str]:
    arguments = Scanner(call.text)
    option, uid = arguments.word(), arguments.integer()
    if option != "-uid" or uid is None:
        yield "A user id (UID) is required to start a new server"
        return
    refused = call.may_not_touch(uid, call.driver.refusals.start)
    if refused:
        yield refused
    elif uid >= 0:
        call.fleet.wanted.append(uid)


def _shut_down_server(call: Call) -> Iterator[str]:
    arguments = Scanner(call.text)
    pid = arguments.integer() or 0
    server = call.fleet.find(pid)
    if server is None:
        yield f"Server {pid} not found"
        return
    refused = call.may_not_touch(server.uid, call.driver.refusals.shutdown)
    if refused:
        yield refused
    elif arguments.option()[0] == "f":
        call.fleet.kill(server)
    else:
        call.fleet.retire(server)


def _terminate_client(call: Call) -> Iterator[str]:
    arguments = Scanner(call.text)
    pid, client = arguments.integer() or 0, arguments.integer() or 0
    server = call.fleet.find(pid)
    refused = server and call.may_not_touch(server.uid, call.driver.refusals.termination)
    if refused:
        yield refused
        yield "800"
        return
    for found in _linked(call, pid):
        if isinstance(found, str):
            yield found
            yield f"Server {pid} not found!"
            yield "1"
        elif not os.path.lexists(f"/proc/{client}"):
            yield f"Invalid process {client}!"
            yield "1"
        else:
            yield str(found.terminate(client))


def _device_query(call: Call) -> Iterator[str]:
    words = [word for word in call.text.split() if word != "--csv"]
    csv = "--csv" in call.text.split()
    if words:
        server = call.fleet.find(scan.int32(words[0]))
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


TABLE: dict[str, Callable[[Call], Iterator[str]]] = {
    "get_server_list": _server_list,
    "get_server_status": _server_status,
    "get_client_list": _client_list,
    "get_device_client_list": _device_client_list,
    "ps": _ps,
    "get_default_active_thread_percentage": _get_default_percentage,
    "set_default_active_thread_percentage": _set_default_percentage,
    "get_active_thread_percentage": _get_percentage,
    "set_active_thread_percentage": _set_percentage,
    "get_default_device_pinned_mem_limit": _get_default_limit,
    "set_default_device_pinned_mem_limit": _set_default_limit,
    "get_device_pinned_mem_limit": _get_limit,
    "set_device_pinned_mem_limit": _set_limit,
    "get_default_client_priority": _get_priority,
    "set_default_client_priority": _set_priority,
    "start_server": _start_server,
    "shutdown_server": _shut_down_server,
    "terminate_client": _terminate_client,
    "device_query": _device_query,
}
