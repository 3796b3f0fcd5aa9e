"""A cpio archive (`newc`, Documentation/driver-api/early-userspace/buffer-format.rst) for a kernel to boot from."""

from __future__ import annotations

import stat
from pathlib import Path


class Archive:
    """Files are added by path; parents come by themselves."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._names: set[str] = set()

    def directory(self, name: str) -> None:
        """An empty directory."""
        if name not in self._names:
            self._parents(name)
            self._add(name, stat.S_IFDIR | 0o755, b"")

    def text(self, name: str, content: str, *, executable: bool = False) -> None:
        """A file with this text."""
        self._parents(name)
        self._add(name, stat.S_IFREG | (0o755 if executable else 0o644), content.encode())

    def file(self, name: str, source: Path) -> None:
        """A copy of a file of the host, with its mode."""
        self._parents(name)
        self._add(name, stat.S_IFREG | (source.stat().st_mode & 0o777), source.read_bytes())

    def data(self, name: str, content: bytes) -> None:
        """A file with these bytes."""
        self._parents(name)
        self._add(name, stat.S_IFREG | 0o644, content)

    def link(self, name: str, target: str) -> None:
        """A symbolic link."""
        self._parents(name)
        self._add(name, stat.S_IFLNK | 0o777, target.encode())

    def has(self, name: str) -> bool:
        """Whether something of this name was added."""
        return name in self._names

    def content(self) -> bytes:
        """The archive."""
        return b"".join([*self._parts, _entry("TRAILER!!!", 0, b"", 0)])

    def _parents(self, name: str) -> None:
        for parent in reversed(Path(name).parents):
            if str(parent) != ".":
                self.directory(str(parent))

    def _add(self, name: str, mode: int, content: bytes) -> None:
        self._names.add(name)
        self._parts.append(_entry(name, mode, content, len(self._names)))


def _entry(name: str, mode: int, content: bytes, inode: int) -> bytes:
    links = 2 if stat.S_ISDIR(mode) else 1
    encoded = name.encode() + b"\0"
    fields = (inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
    head = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(head + encoded) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
