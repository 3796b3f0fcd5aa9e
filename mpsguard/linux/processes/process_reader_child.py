"""The child of `process_reader`: reads /proc files of processes on its standard input's behalf.

A request is a line, ``PID NAME=LIMIT,... VARIABLE,...``. The answer is one line, the length of each file in the order
asked for (-1: unreadable) with commas between, followed by their bytes. Of ``environ`` only the variables go back.

It imports nothing that Python has not loaded itself: json and typing take as long as the rest of its start, and each
guard has two of these children.
"""

import sys

# Type checkers know this name; to import it from typing would import typing.
TYPE_CHECKING = False
if TYPE_CHECKING:
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


def parse(line: str) -> tuple[int, dict[str, int], list[str]]:
    """The process, the files with their limits, and the variables of a request."""
    pid, files, names = line.rstrip("\n").split(" ")
    limits = (each.partition("=") for each in files.split(","))
    return int(pid), {name: int(limit) for name, _, limit in limits}, names.split(",") if names else []


def serve(questions: "BinaryIO", answers: "BinaryIO") -> None:
    """Answer until the parent asks no more."""
    for line in questions:
        pid, files, names = parse(line.decode("ascii"))
        found = [read(pid, name, limit) for name, limit in files.items()]
        for at, name in enumerate(files):
            data = found[at]
            if name == "environ" and data is not None:
                found[at] = chosen(data, names)
        lengths = ",".join(str(-1 if data is None else len(data)) for data in found)
        answers.write(lengths.encode() + b"\n" + b"".join(data or b"" for data in found))
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
