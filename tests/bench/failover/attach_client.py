"""A process that makes, attaches, reloads and checks GPU memory in the vault: `python -m ... ROLE SESSION GIB`.

Prints one JSON line a request read from standard input (`make NAME CHUNKS`, `attach NAME`, `reload`, `check NAME`,
`release NAME`).
"""

import json
import sys
import time
from typing import Any, Final

import torch

from mpsguard import client
from mpsguard.vault.client import cuda

_WORD: Final = 8
_PIECE: Final = 1 << 30
"""Bytes looked at at a time."""


def say(**members: object) -> None:
    """One answer."""
    sys.stdout.write(json.dumps(members) + "\n")
    sys.stdout.flush()


def words(memory: Any, offset: int, nbytes: int) -> torch.Tensor:
    """A piece of mapped memory as 64-bit numbers."""
    # PyTorch takes no array that says that it is read-only.
    return torch.as_tensor(memory.view(offset, nbytes, readonly=False), device="cuda").view(torch.int64)


def fill(memory: Any, size: int) -> None:
    """Every word its own number, mixed: a word in the wrong place is a wrong word."""
    for offset in range(0, size, _PIECE):
        piece = words(memory, offset, min(_PIECE, size - offset))
        start = offset // _WORD
        torch.arange(start, start + piece.numel(), out=piece)
        piece.mul_(0x9E3779B97F4A7C1).bitwise_xor_(0x5DEECE66D)
    torch.cuda.synchronize()


def wrong(memory: Any, size: int) -> int:
    """How many words are not what `fill` wrote."""
    count = 0
    for offset in range(0, size, _PIECE):
        piece = words(memory, offset, min(_PIECE, size - offset))
        start = offset // _WORD
        expected = torch.arange(start, start + piece.numel(), device="cuda")
        expected.mul_(0x9E3779B97F4A7C1).bitwise_xor_(0x5DEECE66D)
        count += int((piece != expected).sum())
    return count


def serve(session: client.Session, size: int) -> None:
    """Answer until the input ends."""
    held: dict[str, Any] = {}
    for line in sys.stdin:
        command, *arguments = line.split()
        begin = time.perf_counter()
        if command == "make":
            name, chunks = arguments[0], int(arguments[1])
            held[name] = memory = cuda.create(session, name, size, largest=size // chunks)
            fill(memory, size)
            say(done=command, chunks=len(memory.region.layout.sizes))
        elif command == "attach":
            memory = cuda.attach(session, arguments[0])
            mapped = time.perf_counter() - begin
            first = int(words(memory, 0, _WORD)[0])
            torch.cuda.synchronize()
            used = time.perf_counter() - begin
            del first
            memory.close()
            say(done=command, mapped=mapped, used=used)
        elif command == "check":
            with cuda.attach(session, arguments[0]) as memory:
                count = wrong(memory, size)
            say(done=command, wrong=count, words=size // _WORD)
        elif command == "release":
            session.release(arguments[0])
            say(done=command)
        elif command == "reload":
            host = torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True)
            device = torch.empty(_PIECE, dtype=torch.uint8, device="cuda")
            device.copy_(host)
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(size // _PIECE):
                device.copy_(host, non_blocking=True)
            torch.cuda.synchronize()
            say(done=command, seconds=time.perf_counter() - begin)


def main(role: str, name: str, gib: str) -> None:
    """Attach to the session and serve."""
    torch.zeros(1, device="cuda")
    with client.Session(name, role=client.LeaseRole(role), keep=600, deadline=60) as session:
        say(done="joined")
        serve(session, int(gib) << 30)


if __name__ == "__main__":
    main(*sys.argv[1:])
