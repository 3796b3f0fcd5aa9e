"""Counts the instructions that nvidia-uvm executes while it services faults: QEMU logs each one, function by function.

The machine has one processor and runs one instruction a translation block (`singlestep`) from the moment the program
is ready until it is done; what is logged is the module's text alone. Waiting for the mock GPU's thread takes as long
as it takes, so that functions that poll differ from run to run: two runs of one module tell which those are.
"""

from __future__ import annotations

import re
import socket
import subprocess
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from pathlib import Path
from typing import Final

from tests.vm.guest_programs import program
from tests.vm.guests import LOAD, with_modules
from tests.vm.machine import boot, command_line, write_archive
from tests.vm.sources import Kernel
from tests.vm.workshop import Modules

FAULTS: Final = 4
DEADLINE_S: Final = 150.0
_PROMPT: Final = b"(qemu) "
_TRACE: Final = re.compile(rb"^Trace \d+: 0x[0-9a-f]+ \[[0-9a-f]+/([0-9a-f]+)/", re.MULTILINE)


def count(kernel: Kernel, modules: Modules) -> Counter[str]:
    """Instructions by function of nvidia-uvm, for FAULTS serviced faults."""
    # Without address randomisation a module lies where it lay before; that it does is checked.
    symbols = _symbols(kernel, modules)
    first, behind = symbols[0][0], symbols[-1][0] + 4096
    archive = with_modules(modules)
    archive.file("program", program("service", modules.tree))
    steps = [
        *LOAD,
        "busybox stty -F /dev/ttyS1 raw -echo",
        "busybox grep nvidia_uvm /proc/kallsyms > /dev/ttyS1",
        "busybox echo symbols > /dev/ttyS1",
        f"/program {FAULTS} <>/dev/ttyS1 >&0 2>/dev/console",
    ]
    with tempfile.TemporaryDirectory(prefix="mpsguard-vm-") as name:
        directory = Path(name)
        write_archive(archive, steps, directory)
        log = directory / "log"
        command = [
            *command_line(kernel, directory, 1),
            *("-serial", f"unix:{directory / 'port'},server=on,wait=off"),
            *("-monitor", f"unix:{directory / 'monitor'},server=on,wait=off"),
            # Time goes by instructions executed, or the machine, slowed down, would do nothing but its timer ticks.
            *("-icount", "shift=5,sleep=off"),
            *("-dfilter", f"{first:#x}+{behind - first:#x}", "-D", str(log)),
        ]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as machine:
            try:
                if _drive(directory) != symbols:
                    raise RuntimeError("nvidia-uvm is loaded to another place than the time before")
            finally:
                machine.kill()
        return _by_function(log, symbols)


def _drive(directory: Path) -> list[tuple[int, str]]:
    """Switch the log on when the program is ready and off when it is done; returns the module's functions."""
    end = time.monotonic() + DEADLINE_S
    with _connect(directory / "port", end) as port, _connect(directory / "monitor", end) as monitor:
        _until(monitor, _PROMPT, end)
        symbols = _until(port, b"symbols\n", end)
        _until(port, b"ready\n", end)
        _tell(monitor, "singlestep on", end)
        _tell(monitor, "log exec,nochain", end)
        port.sendall(b"go\n")
        _until(port, b"done\n", end)
        _tell(monitor, "log none", end)
    return _parsed(symbols)


def _symbols(kernel: Kernel, modules: Modules) -> list[tuple[int, str]]:
    steps = [*LOAD, "busybox grep nvidia_uvm /proc/kallsyms > /dev/ttyS1"]
    run = boot(kernel, with_modules(modules), steps, processors=1, deadline_s=DEADLINE_S)
    return _parsed(run.output.encode())


def _parsed(symbols: bytes) -> list[tuple[int, str]]:
    found = re.findall(rb"^([0-9a-f]+) [tT] (\S+)", symbols, re.MULTILINE)
    return sorted((int(address, 16), name.decode()) for address, name in found)


def _connect(path: Path, end: float) -> socket.socket:
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
        else:
            return connection


def _until(connection: socket.socket, ending: bytes, end: float) -> bytes:
    taken = b""
    while ending not in taken:
        connection.settimeout(max(0.01, end - time.monotonic()))
        part = connection.recv(1 << 16)
        if not part:
            raise RuntimeError(f"the machine ended before it said {ending!r}")
        taken += part.replace(b"\r", b"")
    return taken


def _tell(monitor: socket.socket, command: str, end: float) -> None:
    monitor.sendall(f"{command}\n".encode())
    _until(monitor, _PROMPT, end)


def _by_function(log: Path, symbols: list[tuple[int, str]]) -> Counter[str]:
    starts = [address for address, _ in symbols]
    addresses = Counter(int(found, 16) for found in _TRACE.findall(log.read_bytes()))
    total: Counter[str] = Counter()
    for address, times in addresses.items():
        at = bisect_right(starts, address) - 1
        if at >= 0 and address - starts[at] < 1 << 16:
            total[symbols[at][1]] += times
    return total
