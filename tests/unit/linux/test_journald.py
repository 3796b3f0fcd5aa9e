"""Entries of journald's own protocol."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.daemon.guard_log import entry
from mpsguard.linux.systemd import journald


def parsed(data: bytes) -> dict[str, bytes]:
    """The fields of a datagram, as the protocol's description has it."""
    fields = {}
    while data:
        line, _, rest = data.partition(b"\n")
        if b"=" in line:
            name, _, value = line.partition(b"=")
            fields[name.decode()], data = value, rest
        else:
            size = int.from_bytes(rest[:8], "little")
            fields[line.decode()], data = rest[8 : 8 + size], rest[9 + size :]
            assert rest[8 + size : 9 + size] == b"\n"
    return fields


@given(st.dictionaries(st.text(min_size=1, max_size=80), st.text() | st.integers() | st.none() | st.lists(st.text())))
def test_every_event_is_an_entry_that_can_be_read(data: dict[str, object]) -> None:
    fields = entry({**data, "event": "client_parked", "level": "warning"}, "a\nline")
    read = parsed(journald.encode(fields))
    assert read.keys() == fields.keys()
    assert read["MESSAGE"] == b"a\nline"
    assert read["PRIORITY"] == b"4"
    assert read["MESSAGE_ID"] == journald.message_id("client_parked").encode()
    for name in fields.keys() - {"MESSAGE", "MESSAGE_ID", "PRIORITY", "SYSLOG_IDENTIFIER"}:
        assert name.startswith("MPSGUARD_")
        assert len(name) <= 64


def test_message_ids_never_change() -> None:
    assert journald.message_id("incident") == "5dfd35ce0a1c5404852ffcbf072fdb18"
    assert journald.message_id("lane_state") == "4d268d686b07569e937d6854a16174ee"


def test_a_journal_that_does_not_read_costs_no_wait(tmp_path: Path) -> None:
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(path)
        sender = journald.JournalSocket(path)
        while sender.send({"MESSAGE": "x" * 1000}):
            pass
        assert not sender.send({"MESSAGE": "x" * (1 << 24)})
        listener.recv(65536)
        assert sender.send({"MESSAGE": "x"})
    Path(path).unlink()
    assert not sender.send({"MESSAGE": "x"})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as another:
        another.bind(path)
        assert sender.send({"MESSAGE": "y"})
        assert another.recv(100) == b"MESSAGE=y\n"
    sender.close()


def test_standard_error_is_compared_with_the_journals_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "err").open("w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        there = os.fstat(stream.fileno())
        for value, found in ((f"{there.st_dev}:{there.st_ino}", True), (f"{there.st_dev}:1", False), ("", False)):
            monkeypatch.setenv("JOURNAL_STREAM", value)
            assert journald.is_stderr() is found
