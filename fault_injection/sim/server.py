"""The simulated MPS server: registers with the control daemon, admits clients, answers the daemon's requests.

Registration, requests and log lines as seen on driver 580.159.04. What a client says to it after admission is the
simulation's own: `kernel.py`.
"""

import os
import selectors
import struct
import sys
import time
from collections.abc import Callable
from enum import IntEnum
from pathlib import Path

from fault_injection.sim import gpu, memory_limit
from fault_injection.sim.address_space import OFFER
from fault_injection.sim.device import Context, Device
from fault_injection.sim.gpu import CudaError
from fault_injection.sim.kernel import KERNEL
from fault_injection.sim.link import (
    CLIENT_ENTRY,
    DEVICE_ENTRY,
    DEVICE_NAME,
    PERCENTAGE,
    QUERY_ENTRY,
    REGISTRATION,
    Request,
    Status,
)
from fault_injection.sim.recorder import Log, Origin
from fault_injection.sim.script import Script
from fault_injection.sim.wire import CREDENTIALS, DESCRIPTOR, HELLO, Channel, Message, Peer

_GREETING = b"\0"
_INT = struct.Struct("i")


class _Stage(IntEnum):
    CREDENTIALS = 0
    CONTEXT = 1
    FLAGS = 2


class Newcomer:
    """A client that the daemon has handed over, and that is not admitted yet."""

    def __init__(self, channel: Channel, levers: str, limit: int | None) -> None:
        self.channel = channel
        self.levers = levers
        """What it gets of the GPU: as the server had it when the daemon announced the client."""
        self.limit = limit
        """Bytes of memory among that; None without a limit."""
        self.pid = 0
        self.context = 0
        self._stage = _Stage.CREDENTIALS

    def take(self, message: Message) -> bool:
        """Take one message of the introduction; true after the last."""
        if self._stage is _Stage.CREDENTIALS:
            if message.data != CREDENTIALS or message.sender is None:
                raise ConnectionError
            self.pid = message.sender.pid
            self._stage = _Stage.CONTEXT
            return False
        if len(message.data) != _INT.size:
            raise ConnectionError
        if self._stage is _Stage.CONTEXT:
            self.context = _INT.unpack(message.data)[0]
            self._stage = _Stage.FLAGS
            return False
        return True


class Server:
    """One server process."""

    def __init__(self, daemon: Channel, log: Log, script: Script) -> None:
        self._daemon = daemon
        self._log = log
        self._script = script
        self._device = Device(self._say, lambda: script.holds("spare"), script.notices_after)
        self._selector = selectors.DefaultSelector()
        self._percentage = 100.0
        self._priority = 0
        self._pinned: dict[bytes, int] = {}
        self._limits: dict[int, int | None] = {}
        """Bytes of memory that each client may have; None: any. Taken at `cuInit`, as the vendor's does."""
        self._serial = 0
        self._last = "{PID: 0, Context ID: 0}"
        self._leaving = False
        self._status = 0

    def register(self) -> None:
        """Tell the daemon that the server is ready, take its settings."""
        self._device.prepare()
        self._say(f"Created anonymous shared memory region mps.shm.0.{os.getpid()}")
        self._daemon.send_int(Peer.SERVER)
        self._daemon.send(REGISTRATION.pack(0, f"mps.shm.0.{os.getpid()}".encode()))
        self._say("CUDA MPS Server for Linux/Unix. Binary version: 13000")
        self._say("Display Driver version: 580")
        settings = self._daemon.receive().data
        self._percentage = PERCENTAGE.unpack(settings)[0] if len(settings) == PERCENTAGE.size else 100.0
        # Limits of memory by ordinal: from the daemons of 535 and 550, 32 of them.
        for ordinal in range(self._daemon.receive_int64() or 0):
            if limit := self._daemon.receive_uint64():
                self._pinned[DEVICE_NAME.pack(str(ordinal).encode())] = limit
        self._priority = self._daemon.receive_int() or 0
        self._say(f"Active Threads Percentage set to {self._percentage}")
        self._say(f"Server Priority set to {self._priority}")
        self._say("Server has started")
        if (life := self._script.read("server-life")) is not None:
            self._device.after(life["after"], lambda: self._give_up(life["status"]))

    def run(self) -> int:
        """Serve until the daemon says so or is gone."""
        self._selector.register(self._daemon.fileno(), selectors.EVENT_READ, self._request)
        while not self._leaving:
            for key, _events in self._selector.select(self._device.run_timers()):
                act: Callable[[], None] = key.data
                if self._selector.get_map().get(key.fd) is key:
                    act()
        self._say("Exiting")
        return self._status

    def _give_up(self, status: int) -> None:
        self._say("Failed to start : unknown error")
        self._leaving, self._status = True, status

    def _say(self, text: str) -> None:
        self._log.say(Origin.SERVER, text)

    def _forced(self) -> bool:
        return self._script.holds("fault")

    def _request(self) -> None:
        send = self._daemon.send_int
        match self._daemon.receive_int():
            case None:
                self._leaving = True
            case Request.NEW_CLIENT:
                self._new_client()
            case Request.SHUT_DOWN:
                self._shut_down()
            case Request.STATUS:
                send(Status.FAULT if self._device.fault or self._forced() else Status.ACTIVE)
            case Request.TERMINATE_CLIENT:
                pid = self._daemon.receive_int() or 0
                _wait_while_stopped(pid)
                send(self._device.terminate(pid))
            case Request.CLIENT_LIST:
                pids = list(dict.fromkeys(context.pid for context in self._device.active()))
                send(len(pids))
                for pid in pids:
                    send(pid)
            case Request.DEVICE_CLIENT_LIST:
                self._device_clients()
            case Request.PS:
                self._processes()
            case Request.DEVICE_QUERY:
                self._daemon.receive_int64()
                self._say("Received device query command. There are 1 devices")
                send(1)
                self._daemon.send(QUERY_ENTRY.pack(gpu.BUS, gpu.UUID_BYTES, gpu.NAME.encode()))
            case setting:
                self._setting(setting)

    def _setting(self, request: int) -> None:
        match request:
            case Request.GET_PERCENTAGE:
                self._daemon.send(PERCENTAGE.pack(self._percentage))
            case Request.SET_PERCENTAGE:
                self._percentage = PERCENTAGE.unpack(self._daemon.receive().data)[0]
            case Request.SET_PRIORITY:
                self._priority = self._daemon.receive_int() or 0
                self._say(f"Client Priority set to {self._priority}")
            case Request.GET_PINNED_LIMIT:
                self._daemon.send_int64(self._pinned.get(self._daemon.receive().data, 0))
            case Request.SET_PINNED_LIMIT:
                self._limit(self._daemon.receive().data)
            case Request.GET_LIMIT_OF_ORDINAL:
                self._daemon.send_int64(self._pinned.get(self._ordinal(), 0))
            case Request.SET_LIMIT_OF_ORDINAL:
                self._limit(self._ordinal())

    def _ordinal(self) -> bytes:
        return DEVICE_NAME.pack(str(self._daemon.receive_int()).encode())

    def _limit(self, device: bytes) -> None:
        limit = self._pinned[device] = self._daemon.receive_uint64() or 0
        name = device.rstrip(b"\0").decode()
        self._say(f"Device pinned memory limit for device {name} set to {limit:#x} bytes")

    def _shut_down(self) -> None:
        self._say("Server has been notified to shutdown")
        workers = len(self._device.contexts)
        self._daemon.send_int(workers)
        if workers:
            self._say(f"Server was unable to shutdown due to {workers} active clients")
        else:
            self._say("Waiting for current clients to finish")
            self._leaving = True

    def _device_clients(self) -> None:
        contexts = self._device.active()
        self._daemon.send_int(1)
        self._daemon.send(gpu.UUID_BYTES)
        self._daemon.send(DEVICE_ENTRY.pack(0, 0, gpu.NAME.encode()))
        self._daemon.send_int(len(contexts))
        for context in contexts:
            self._daemon.send(CLIENT_ENTRY.pack(context.pid, context.number, 0, b"", 0))

    def _processes(self) -> None:
        contexts = self._device.active()
        self._daemon.send_int(len(contexts))
        for context in contexts:
            self._daemon.send(CLIENT_ENTRY.pack(context.pid, context.number, 0, gpu.UUID_BYTES, context.serial))
        self._daemon.receive_int()

    def _new_client(self) -> None:
        self._say(f"Received new client request for {self._last}")
        message = self._daemon.receive()
        if message.data != DESCRIPTOR or not message.fds:
            return
        channel = Channel.adopt(message.fds[0])
        channel.send(_GREETING)
        limits = " ".join(
            f"{name.rstrip(bytes(1)).decode()}={limit}" for name, limit in sorted(self._pinned.items()) if limit
        )
        levers = f"share={self._percentage:g} priority={self._priority} {limits}".strip()
        newcomer = Newcomer(channel, levers, self._pinned.get(DEVICE_NAME.pack(b"0")) or None)
        self._selector.register(channel.fileno(), selectors.EVENT_READ, lambda: self._introduction(newcomer))

    def _introduction(self, newcomer: Newcomer) -> None:
        try:
            complete = newcomer.take(newcomer.channel.receive())
        except ConnectionError:
            self._selector.unregister(newcomer.channel.fileno())
            newcomer.channel.close()
            return
        if complete:
            self._selector.unregister(newcomer.channel.fileno())
            self._admit(newcomer)

    def _admit(self, newcomer: Newcomer) -> None:
        if newcomer.context > 0:
            self._serial += 1
        context = Context(newcomer.channel, newcomer.pid, newcomer.context, self._serial)
        self._last = str(context)
        if self._device.fault or self._forced():
            self._say(f"Server teardown in progress. Refusing to accept new client {context}")
            context.channel.send_int(CudaError.MPS_SERVER_NOT_READY)
            self._say(f"Failed to accept client {context} with status {CudaError.MPS_SERVER_NOT_READY}")
            context.channel.close()
            return
        if context.number > 0 and (self._device.unavailable() or self._script.holds("unavailable")):
            # Seen on 580.159.04: the runtime's cudaErrorDevicesUnavailable, with cuInit done.
            self._say(f"Failed to accept client {context} with status {CudaError.DEVICE_UNAVAILABLE}")
            context.channel.send_int(CudaError.DEVICE_UNAVAILABLE)
            context.channel.close()
            return
        self._device.prepare()
        self._say(f"Client {context} connected")
        # No driver says so: for tests.
        self._say(f"SIMULATED levers of {newcomer.pid}: {newcomer.levers}")
        self._say(f"Creating worker thread for client {context}")
        if context.number == 0:
            self._limits[context.pid] = memory_limit.of_client(newcomer.limit, memory_limit.variable_of(context.pid))
        if context.number > 0:
            self._say(f"Device {gpu.NAME} (uuid {gpu.printed(gpu.UUID_BYTES)}) is associated")
            self._say(f"Status of client {context} is ACTIVE")
        self._device.contexts.append(context)
        self._selector.register(context.channel.fileno(), selectors.EVENT_READ, lambda: self._work(context))
        context.channel.send_int(CudaError.SUCCESS)

    def _work(self, context: Context) -> None:
        message = context.channel.receive()
        if message.data == OFFER and message.fds:
            context.space = message.fds[0]
        elif message.data == DESCRIPTOR:
            context.memory.extend(message.fds)
            context.channel.send_int(self._fits(context))
        elif len(message.data) == KERNEL.size:
            seconds, fault = KERNEL.unpack(message.data)
            self._device.launch(context, seconds, fault.rstrip(b"\0").decode())
        else:
            self._leave(context)

    def _fits(self, context: Context) -> CudaError:
        """Give memory back that is beyond the client's limit."""
        limit = self._limits.get(context.pid)
        if limit is None or sum(os.fstat(fd).st_size for fd in context.memory) <= limit:
            return CudaError.SUCCESS
        for fd in context.memory:
            os.close(fd)
        context.memory.clear()
        return CudaError.OUT_OF_MEMORY

    def _leave(self, context: Context) -> None:
        """Let a client go; its process goes last, after the contexts that died with it."""
        if context.number == 0:
            self._limits.pop(context.pid, None)
            for other in [one for one in self._device.active() if one.pid == context.pid]:
                self._leave(other)
        self._selector.unregister(context.channel.fileno())
        self._device.leave(context)
        if context.left_running:
            self._selector.register(context.space, selectors.EVENT_READ, lambda: self._space_gone(context))

    def _space_gone(self, context: Context) -> None:
        self._selector.unregister(context.space)
        self._device.space_gone(context)


def _wait_while_stopped(pid: int) -> None:
    """The server asks the client to let go, and does nothing else until it has: a stopped one keeps all waiting."""
    while True:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state not in ("T", "t"):
            return
        time.sleep(0.005)


def main(pipe_directory: Path) -> int:
    """Run a server; only the control daemon starts one."""
    try:
        log = Log(pipe_directory / "log")
        daemon = Channel.connect(str(pipe_directory / "control"))
    except OSError:
        print("SIMULATION of nvidia-cuda-mps-server: there is no control daemon to serve", file=sys.stderr)
        return 1
    log.say(Origin.OTHER, "Startup")
    log.say(Origin.OTHER, f"Connecting to control daemon on socket: {pipe_directory / 'control'}")
    log.say(Origin.OTHER, "Initializing server process")
    if daemon.receive().data != HELLO or not daemon.send_credentials():
        return 1
    script = Script(pipe_directory)
    if not script.start_server():
        return 1
    server = Server(daemon, log, script)
    server.register()
    return server.run()
