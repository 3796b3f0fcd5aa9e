"""A peer of the public sockets that speaks the handshake byte by byte: the tests' own, apart from the guard's code."""

import array
import os
import socket
import struct
from pathlib import Path
from typing import Self

GREETING = b"OUTBHELL\0"
CREDENTIALS = b"OUTBCRED\0"
HANDOVER = b"OUTBCUFD\0"
CLIENT = struct.pack("<i", 2)
UI = struct.pack("<i", 4)


class Peer:
    """One connection; blocking, with a deadline on every call."""

    def __init__(self, directory: Path, name: str = "control", *, deadline: float = 20.0) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(deadline)
        self.socket.connect(str(directory / name))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def say(self, data: bytes) -> None:
        self.socket.send(data)

    def say_all(self, *messages: bytes) -> None:
        for message in messages:
            self.say(message)

    def say_as(self, data: bytes, pid: int, uid: int, gid: int) -> None:
        """Claim other credentials; the kernel lets only a privileged process."""
        self.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", pid, uid, gid))])

    def say_with_descriptors(self, data: bytes, count: int) -> None:
        with open(os.devnull) as null:
            fds = array.array("i", [null.fileno()] * count)
            self.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds.tobytes())])

    def hear(self) -> tuple[bytes, list[int]]:
        """The next packet and its descriptors, which are the caller's; b"" at the end."""
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, 65536, 8)
        except ConnectionResetError:
            return b"", []
        return data, list(fds)

    def ended(self) -> bool:
        """Whether the other side closes, whatever it has still to say."""
        while True:
            data, fds = self.hear()
            for fd in fds:
                os.close(fd)
            if not data:
                return True

    def connect_as_client(self) -> bool:
        """The whole handshake of a CUDA client; whether a descriptor came of it."""
        assert self.hear()[0] == GREETING
        self.say(CREDENTIALS)
        self.say(CLIENT)
        data, fds = self.hear()
        for fd in fds:
            os.close(fd)
        if data != HANDOVER or len(fds) != 1:
            return False
        self.say(struct.pack("<i", 0))
        return True

    def connect_as_command_line(self) -> None:
        """The handshake of the vendor's command line."""
        assert self.hear()[0] == GREETING
        self.say(CREDENTIALS)
        self.say(UI)

    def command(self, line: str) -> str:
        """Type a command that has one line of reply, and read that."""
        text = line.encode() + b"\n\0"
        self.say(struct.pack("<q", len(text)))
        self.say(text)
        reply = self.hear()[0]
        assert reply[:4] == struct.pack("<i", 0)
        return reply[4:].decode()

    def end_commands(self) -> int:
        """Say that no command follows; the exit status."""
        self.say(struct.pack("<q", 0))
        tag, status = struct.unpack("<ii", self.hear()[0])
        assert tag == 1
        return int(status)
