"""A real browser for a page that is a file: its DOM after loading, or its picture."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

CHROMIUM = shutil.which("chromium")
# No sandbox: the tests run as root in containers. No network of its own: these would all go out at the start.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
DARK, LIGHT = 0, 1


def _run(page: Path, *arguments: str) -> bytes:
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-") as profile:
        done = subprocess.run(
            [
                CHROMIUM,
                *_FLAGS,
                f"--user-data-dir={profile}",
                *arguments,
                page.as_uri(),
            ],
            capture_output=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
    return done.stdout


def dom(page: Path) -> str:
    """The document after it was loaded and its scripts, if they may, have run."""
    return _run(page, "--dump-dom").decode()


@contextlib.contextmanager
def browsing(address: str) -> Iterator[None]:
    """Stay on a page as a reader does."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        command = [CHROMIUM, *_FLAGS, f"--user-data-dir={profile}", "--remote-debugging-port=0", address]
        # A session of its own: its children go with it.
        running = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        try:
            yield
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


class Picture(NamedTuple):
    """Pixels, three bytes each."""

    width: int
    rows: list[bytes]

    def count(self, colour: str) -> int:
        """How many pixels have exactly this colour."""
        wanted = bytes.fromhex(colour[1:])
        return sum(row[at : at + 3] == wanted for row in self.rows if wanted in row for at in range(0, len(row), 3))


def png(page: Path, scheme: int, size: tuple[int, int]) -> bytes:
    """Return the page as it looks to a reader that prefers ``scheme``, as a file's content."""
    with tempfile.TemporaryDirectory(prefix="picture-") as directory:
        file = Path(directory) / "page.png"
        _run(
            page,
            f"--screenshot={file}",
            f"--window-size={size[0]},{size[1]}",
            f"--blink-settings=preferredColorScheme={scheme}",
        )
        return file.read_bytes()


def screenshot(page: Path, scheme: int, size: tuple[int, int] = (1100, 1300)) -> Picture:
    """Return the pixels of the page as it looks to a reader that prefers ``scheme``."""
    return _decode(png(page, scheme, size))


def _decode(png: bytes) -> Picture:
    """The pixels of an 8-bit RGB or RGBA picture that is not interlaced: what Chromium writes."""
    at, data, width, size = 8, b"", 0, 0
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        if kind == b"IHDR":
            width, _, depth, colours, _, _, interlaced = struct.unpack_from(">IIBBBBB", png, at + 8)
            assert (depth, interlaced) == (8, 0)
            size = {2: 3, 6: 4}[colours]
        elif kind == b"IDAT":
            data += png[at + 8 : at + 8 + length]
        at += length + 12
    raw, stride = zlib.decompress(data), width * size
    rows, above = [], bytes(stride)
    for start in range(0, len(raw), stride + 1):
        above = _unfilter(raw[start], bytearray(raw[start + 1 : start + 1 + stride]), above, size)
        rows.append(above if size == 3 else b"".join(above[i : i + 3] for i in range(0, stride, 4)))
    return Picture(width, rows)


def _unfilter(kind: int, row: bytearray, above: bytes, size: int) -> bytes:
    """Take a row's filter off (PNG, 9.2). Each kind has a loop of its own: a picture has four million bytes."""
    if kind == 0:
        return bytes(row)
    if kind == 2:
        return bytes((x + up) & 0xFF for x, up in zip(row, above, strict=True)) if any(row) else above
    if kind == 1:
        for i in range(size, len(row)):
            row[i] = (row[i] + row[i - size]) & 0xFF
        return bytes(row)
    for i in range(len(row)):
        left = row[i - size] if i >= size else 0
        up = above[i]
        if kind == 3:
            best = (left + up) // 2
        else:
            corner = above[i - size] if i >= size else 0
            to_left, to_up, to_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
            best = left if to_left <= to_up and to_left <= to_corner else up if to_up <= to_corner else corner
        row[i] = (row[i] + best) & 0xFF
    return bytes(row)
