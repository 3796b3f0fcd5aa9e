"""A program that pretends to run under the preload, and hands out what it should not: `python -m ... LIE`.

It makes a zone table with one region and a socket of that name, says "ready", and answers each request with the lie.
"""

import fcntl
import mmap
import os
import socket
import struct
import sys
import time

from mpsguard.linux.sockets import seqpacket
from mpsguard.preload import zone_table
from mpsguard.preload.zone_table import ZoneRegion

MIB = 1 << 20
USER = 0x7F0000000000
REGION = ZoneRegion(1, 0, USER - MIB, MIB, 2 * MIB, MIB, USER, 2 * MIB, front_armed=False, back_armed=False, slab=False)
REPLY = struct.Struct("<iIQQQQ16s")


def table(name: bytes) -> mmap.mmap:
    size = zone_table.HEADER_BYTES + zone_table.SLOT.size
    file = os.memfd_create(zone_table.NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    memory = mmap.mmap(file, size)
    header = (zone_table.MAGIC, zone_table.VERSION, zone_table.HEADER_BYTES, zone_table.SLOT.size, 1, os.getpid(), 0)
    memory[: zone_table.HEADER.size] = zone_table.HEADER.pack(*header)
    memory[zone_table.SERVICE_AT : zone_table.SERVICE_AT + len(name)] = name
    memory[zone_table.HEADER_BYTES :] = zone_table.encode(REGION, 0)
    return memory


def memory_file(size: int) -> int:
    file = os.memfd_create("device-memory", os.MFD_CLOEXEC)
    os.ftruncate(file, size)
    return file


def reply(memory: int = 2 * MIB, offset: int = 0, size: int = 2 * MIB, gpu: bytes = bytes(16)) -> bytes:
    return REPLY.pack(0, 0, memory, offset, USER, size, gpu)


def answers(lie: str) -> tuple[bytes, tuple[int, ...]]:
    match lie:
        case "no descriptor":
            return reply(), ()
        case "another form":
            return b"hello", (memory_file(2 * MIB),)
        case "several descriptors":
            return reply(), (memory_file(2 * MIB), memory_file(2 * MIB))
        case "a pipe":
            return reply(), (os.pipe()[0],)
        case "a file that is too small":
            return reply(), (memory_file(MIB),)
        case "outside of its memory":
            return reply(offset=MIB), (memory_file(2 * MIB),)
        case "more than there is":
            return reply(memory=1 << 50, size=1 << 50), (memory_file(1 << 50),)
        case _:
            raise ValueError(lie)


def main() -> None:
    lie = sys.argv[1]
    name = bytes.fromhex(sys.argv[2]) if len(sys.argv) > 2 else os.urandom(zone_table.SERVICE_BYTES)
    kept = table(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if lie != "another's socket":
        listener.bind(b"\0mpsguard-ipc-" + name.hex().encode())
        listener.listen()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if lie in {"another's socket", "silence"}:
        time.sleep(600)
    while True:
        connection, _ = listener.accept()
        data, fds = answers(lie)
        seqpacket.send(connection, data, fds=fds)
        assert kept


if __name__ == "__main__":
    main()
