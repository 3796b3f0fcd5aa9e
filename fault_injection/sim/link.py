"""What the control daemon asks its server, over the connection the server registered on.

Request numbers and layouts as seen on driver 580.159.04; both ends of the simulation use this file.
"""

import struct
from enum import IntEnum
from typing import NamedTuple

from fault_injection.sim.wire import DESCRIPTOR, Channel

REGISTRATION = struct.Struct("=i512s")
CLIENT_ENTRY = struct.Struct("=Iii4x16sQ")
DEVICE_ENTRY = struct.Struct("=II68s")
QUERY_ENTRY = struct.Struct("=8xI12x16s128s4x")
DEVICE_NAME = struct.Struct("41s")
PERCENTAGE = struct.Struct("d")
QUERY_TIMEOUT_MS = 11024


class Request(IntEnum):
    """The int32 in front of every request."""

    NEW_CLIENT = 2
    SHUT_DOWN = 5
    CLIENT_LIST = 6
    DEVICE_CLIENT_LIST = 7
    GET_PERCENTAGE = 8
    SET_PERCENTAGE = 9
    GET_LIMIT_OF_ORDINAL = 11
    """As `GET_PINNED_LIMIT`, with the device as an int32: from the daemons of 535 and 550."""
    SET_LIMIT_OF_ORDINAL = 12
    TERMINATE_CLIENT = 13
    PS = 14
    SET_PRIORITY = 15
    STATUS = 17
    GET_PINNED_LIMIT = 19
    SET_PINNED_LIMIT = 20
    DEVICE_QUERY = 24


class Status(IntEnum):
    """Answer to `STATUS`."""

    FAULT = 0
    ACTIVE = 1


class ServerLostError(Exception):
    """The server went away in the middle of a request."""


class ClientEntry(NamedTuple):
    """One context of one client, as `ps` shows it."""

    pid: int
    context: int
    uuid: bytes
    serial: int


class DeviceEntry(NamedTuple):
    """One device of a server."""

    ordinal: int
    name: str
    uuid: bytes
    clients: tuple[tuple[int, int], ...]


class Link:
    """The daemon's end; every call blocks until the server has answered, as in the vendor's daemon."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def close(self) -> None:
        """Hang up; the server exits when it notices."""
        self._channel.close()

    def introduce(self, fd: int) -> bool:
        """Hand over a client's socket; false when the server is gone."""
        return self._channel.send_int(Request.NEW_CLIENT) and self._channel.send(DESCRIPTOR, fd=fd)

    def shut_down(self) -> int:
        """Ask the server to exit; the answer is how many worker threads keep it from that."""
        return self._ask(Request.SHUT_DOWN)

    def status(self) -> Status:
        """ACTIVE or FAULT."""
        return Status(self._ask(Request.STATUS))

    def terminate(self, pid: int) -> int:
        """End a client's work; 0, or a CUDA error number."""
        self._channel.send_int(Request.TERMINATE_CLIENT)
        return self._ask(pid)

    def clients(self) -> list[int]:
        """Process ids with an active context."""
        return [self._int() for _ in range(self._ask(Request.CLIENT_LIST))]

    def processes(self) -> list[ClientEntry]:
        """The rows of `ps`."""
        count = self._ask(Request.PS)
        rows = []
        for _ in range(count):
            pid, context, _zero, uuid, serial = CLIENT_ENTRY.unpack(self._take(CLIENT_ENTRY.size))
            rows.append(ClientEntry(pid, context, uuid, serial))
        self._channel.send_int(0)
        return rows

    def devices(self) -> list[DeviceEntry]:
        """Devices and their clients."""
        found = []
        for _ in range(self._ask(Request.DEVICE_CLIENT_LIST)):
            uuid = self._take(16)
            ordinal, _bus, name = DEVICE_ENTRY.unpack(self._take(DEVICE_ENTRY.size))
            rows = [CLIENT_ENTRY.unpack(self._take(CLIENT_ENTRY.size)) for _ in range(self._int())]
            found.append(
                DeviceEntry(ordinal, name.rstrip(b"\0").decode(), uuid, tuple((row[0], row[1]) for row in rows))
            )
        return found

    def query(self) -> list[tuple[int, bytes, str]]:
        """Bus number, UUID and name of each device."""
        self._channel.send_int(Request.DEVICE_QUERY)
        self._channel.send_int64(QUERY_TIMEOUT_MS)
        found = []
        for _ in range(self._int()):
            bus, uuid, name = QUERY_ENTRY.unpack(self._take(QUERY_ENTRY.size))
            found.append((bus, uuid, name.rstrip(b"\0").decode()))
        return found

    def percentage(self) -> float:
        """Active thread percentage."""
        self._channel.send_int(Request.GET_PERCENTAGE)
        value: float = PERCENTAGE.unpack(self._take(PERCENTAGE.size))[0]
        return value

    def set_percentage(self, value: float) -> None:
        """Change the active thread percentage."""
        self._channel.send_int(Request.SET_PERCENTAGE)
        self._channel.send(PERCENTAGE.pack(value))

    def set_priority(self, value: int) -> None:
        """Change the priority of clients to come."""
        self._channel.send_int(Request.SET_PRIORITY)
        self._channel.send_int(value)

    def pinned_limit(self, device: str) -> int:
        """Pinned memory limit of a device in bytes, 0 for none."""
        self._channel.send_int(Request.GET_PINNED_LIMIT)
        self._channel.send(DEVICE_NAME.pack(device.encode()[:40]))
        value = self._channel.receive_uint64()
        if value is None:
            raise ServerLostError
        return value

    def set_pinned_limit(self, device: str, limit: int) -> None:
        """Change a pinned memory limit."""
        self._channel.send_int(Request.SET_PINNED_LIMIT)
        self._channel.send(DEVICE_NAME.pack(device.encode()[:40]))
        self._channel.send_int64(limit)

    def _ask(self, request: int) -> int:
        self._channel.send_int(request)
        return self._int()

    def _int(self) -> int:
        value = self._channel.receive_int()
        if value is None:
            raise ServerLostError
        return value

    def _take(self, size: int) -> bytes:
        data = self._channel.receive().data
        if len(data) != size:
            raise ServerLostError
        return data
