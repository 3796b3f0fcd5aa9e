"""A program of another user, written as Python source: what the attacks are made of."""

import sys
from pathlib import Path
from typing import Any

from tests.integration.guarded import Guarded, Program

UID = 65534
"""The uid of the attacker unless a test says otherwise."""

_PRELUDE = """
{imports}
import ctypes, encodings.idna, fcntl, json, mmap, os, select, signal, socket, struct, sys, threading, time
# Not before: the interpreter may lie where that user cannot read.
if {uid}:
    os.setgroups([]); os.setresgid({uid}, {uid}, {uid}); os.setresuid({uid}, {uid}, {uid})
PUBLIC = sys.argv[1]

def tell(event, **more):
    # At once: the lines of a program's children must not mix.
    os.write(1, json.dumps(dict(event=event, **more)).encode() + b"\\n")

def connect(name="control"):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(30)
    sock.connect(os.path.join(PUBLIC, name))
    return sock

def introduce(sock, kind):
    sock.recv(64)
    sock.send(b"OUTBCRED\\0")
    sock.send(struct.pack("<i", kind))

def client():
    sock = connect()
    introduce(sock, 2)
    _, fds, _, _ = socket.recv_fds(sock, 64, 4)
    sock.send(struct.pack("<i", 0))
    return sock, fds

def command(sock, line):
    text = line.encode() + b"\\n\\0"
    sock.send(struct.pack("<q", len(text)))
    sock.send(text)
"""


def attack(
    guarded: Guarded,
    source: str,
    *arguments: str,
    uid: int = UID,
    directory: Path | None = None,
    imports: str = "",
    within: tuple[str, ...] = (),
    **more: Any,
) -> Program:
    """Run ``source`` as ``uid``; it has what `_PRELUDE` defines, and ``imports``, made before the user changes.

    ``within`` is a command that runs the one after it (`container_root`).
    """
    program = _PRELUDE.format(uid=uid, imports=imports) + source
    where = str(directory or guarded.public)
    return guarded.program([*within, sys.executable, "-c", program, where, *arguments], **more)
