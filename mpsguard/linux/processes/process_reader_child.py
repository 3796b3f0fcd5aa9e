"""The child of `process_reader`: reads /proc files of processes on its standard input's behalf. Standard library alone.

A request is a line of JSON, ``[pid, {name: limit}, [variable, ...]]``. The answer is one line of JSON, the length of
each file in the order asked for (-1: unreadable), followed by their bytes. Of ``environ`` only the variables go back.
"""

import json
import sys
from typing import BinaryIO


def read(pid: int, name: str, limit: int) -> bytes | None:
    """The first bytes of a file of the process, or None."""
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # noqa: PTH123  # pathlib takes 20 ms to import
            found = b""
            while len(found) < limit and (more := file.read(min(limit - len(found), 1 << 20))):
                found += more
            return found
    except OSError:
        return None


def chosen(environ: bytes, names: list[str]) -> bytes:
    """The entries of these variables alone."""
    wanted = tuple(f"{name}=".encode() for name in names)
    return b"\0".join(entry for entry in environ.split(b"\0") if entry.startswith(wanted))


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the parent asks no more."""
    for line in questions:
        pid, files, names = json.loads(line)
        found = [read(pid, name, limit) for name, limit in files.items()]
        for at, name in enumerate(files):
            data = found[at]
            if name == "environ" and data is not None:
                found[at] = chosen(data, names)
        lengths = [-1 if data is None else len(data) for data in found]
        answers.write(json.dumps(lengths).encode() + b"\n" + b"".join(data or b"" for data in found))
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
