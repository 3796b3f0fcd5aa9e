"""server.log and control.log: what real faults look like in them, and what must not be read into them."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.daemon_log import parse_line
from mpsguard.guard.evidence import Evidence, ServerSays, Source, Trust
from mpsguard.guard.sensors.daemon_logs import DaemonLogSensor, LogReader
from mpsguard.linux.files.log_tail import LogTail
from tests.harness.waiting import until

# server.log of 580.159.04 around a `trap` of one client: both clients are said to have triggered it. Every line begins
# with "[2026-11-20 14:01:28.554 Server   479] " or a moment later.
TRAP_TEXTS = """\
Creating worker thread for client {PID: 755, Context ID: 0}
Server is handling a fatal GPU error.
Client {PID: 697, Context ID: 1} on device 0 to be torn down
Client {PID: 704, Context ID: 1} on device 0 to be torn down
All clients belonging to error trigging process 697 will be torn down
Client {PID: 697, Context ID: 1} on the error-trigging process 697 to be torn down
Server failed to recevie command with status 806, assuming client {PID: 704, Context ID: 1} exit
All clients belonging to error trigging process 704 will be torn down
Client {PID: 704, Context ID: 1} on the error-trigging process 704 to be torn down
The following devices will be reset:
0
The following client process have a sticky error set:
697
704
Received new client request for {PID: 755, Context ID: 0}
Server teardown in progress. Refusing to accept new client {PID: 755, Context ID: 1}
Failed to accept client {PID: 755, Context ID: 1} with status 807
Client {PID: 704, Context ID: 1} exiting. Worker is in reset. Number of active client contexts is 1.
Destroy server context on device 0 (NVIDIA H200)
Creating server context on device 0 (NVIDIA H200)
"""
STAMP = "[2026-11-20 14:01:28.554 "
MILLISECOND = 0.002
"""What a stamp is exact to, and the distance of two clocks that are read one after the other."""
TRAP = "".join(f"{STAMP}Server   479] {text}\n" for text in TRAP_TEXTS.splitlines())


def read(text: str, reader: LogReader | None = None) -> list[ServerSays]:
    reader = reader or LogReader()
    lines = [line for line in map(parse_line, text.splitlines()) if line is not None]
    return [says for line in lines for says in reader.read(line)]


def test_a_trap_accuses_no_client() -> None:
    assert read(TRAP) == [
        ServerSays("fault_begins", 479),
        ServerSays("teardown", 479, 697),
        ServerSays("teardown", 479, 704),
        ServerSays("sticky", 479, 697),
        ServerSays("sticky", 479, 704),
        ServerSays("fault_ends", 479),
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "Server   479] Client {PID: 459, Context: 1} encountered a fatal GPU error.",
            [ServerSays("culprit", 479, 459)],
        ),
        (
            "Server   479] Client {PID: 459, Context ID: 1} encountered a fatal GPU error.",
            [ServerSays("culprit", 479, 459)],
        ),
        ("Control   73] Server 95 exited with status 1", [ServerSays("server_exited", 95)]),
        # The server's own words do not end it, and the control daemon's accuse no client: it repeats what it is sent.
        ("Server   479] Server 95 exited with status 1", []),
        ("Control   73] Client {PID: 459, Context: 1} encountered a fatal GPU error.", []),
        ("Control   73] Cmd:Server 95 exited with status 1", []),
        # Without a fault, a context is a first one and a number is nothing.
        ("Server   479] Creating server context on device 0 (NVIDIA H200)", []),
        ("Server   479] 697", []),
        # A client in another pid namespace (bottlerocket-os/bottlerocket-kernel-kit #415): its number is no process.
        (
            "Server   4400] Client {PID: 1073741824, Context ID: 1} encountered a fatal GPU error.",
            [ServerSays("culprit", 4400, None)],
        ),
        ("Server   4400] Client {PID: 1073741824, Context ID: 1} on device 0 to be torn down", []),
        # Words of others that only contain a daemon's: NVIDIA/k8s-device-plugin #685, #1614, nvidia-docker #1593.
        ("Control    73] Server encountered a fatal exception. Shutting down", []),
        ("Legacy Server   425] Failed to start : invalid argument", []),
        ("Other   337] Connecting to control daemon on socket: /mps/nvidia.com/gpu/pipe/control", []),
        ("Other    17] Volta MPS Server: Received new client request", []),
        ("Other    17] Receive command failed, assuming client exit", []),
        ("Server 4428] Received new client request for {PID: 1073741824, Context ID: 1}", []),
        ("Server 4428] Client {PID: 4267, Context ID: 0} connected", []),
        ("Server 4428] Created anonymous shared memory region mps.shm.1000.4428", []),
        ("Server 4428] Device pinned memory limit for device 0 set to 0x140000000 bytes", []),
        ("Server    82] Volta MPS: status of client {4301, 1} is INACTIVE", []),
        # A guard that starts in the middle of a fault.
        (
            "Server   479] Failed to accept client {PID: 7, Context ID: 1} with status 807",
            [ServerSays("fault_begins", 479)],
        ),
    ],
)
def test_single_lines(line: str, expected: list[ServerSays]) -> None:
    assert read(STAMP + line) == expected


def test_the_words_of_drivers_before_535_mean_the_same() -> None:
    text = "".join(
        f"[2026-01-02 10:00:00.000 Server    82] {line}\n"
        for line in (
            "Volta MPS: Server is handling a fatal GPU error.",
            "Volta MPS: Client {4301, 1} on device 0 to be torn down",
            "Volta MPS: The following devices",
            "0",
            "Volta MPS: The following clients have a sticky error set:",
            "4301",
            "1073741824",
            "Volta MPS: Destroy server context on device 0",
            "Volta MPS: Creating server context on device 0",
            "Client {4301, 1} exit",
        )
    )
    assert read(text) == [
        ServerSays("fault_begins", 82),
        ServerSays("teardown", 82, 4301),
        ServerSays("sticky", 82, 4301),
        ServerSays("fault_ends", 82),
    ]


def test_two_servers_in_one_log_are_kept_apart() -> None:
    text = "\n".join(
        STAMP + line
        for line in (
            "Server 1] The following client process have a sticky error set:",
            "Server 2] The following devices will be reset:",
            "Server 1] 11",
            "Server 2] 0",
            "Server 1] 12",
            "Server 1] Received new client request for {PID: 5, Context ID: 0}",
            "Server 1] 13",
        )
    )
    assert read(text) == [ServerSays("sticky", 1, 11), ServerSays("sticky", 1, 12)]


def test_a_second_fault_of_the_same_server_is_reported_anew() -> None:
    assert Counter(says.what for says in read(TRAP + TRAP)) == {
        "fault_begins": 2,
        "teardown": 4,
        "sticky": 4,
        "fault_ends": 2,
    }


@given(
    st.text()
    | st.builds((STAMP + "{} {}] {}").format, st.sampled_from(["Server", "Control"]), st.integers(), st.text())
)
def test_any_line_can_be_read(text: str) -> None:
    line = parse_line(text)
    if line is not None:
        list(LogReader().read(line))


@pytest.mark.parametrize("stamp", ["2026-13-45 99:99:99.999", "0000-00-00 00:00:00.000"])
def test_a_time_that_is_none(stamp: str) -> None:
    line = parse_line(f"[{stamp} Server 1] Server is handling a fatal GPU error.")
    assert line is not None
    assert line.stamp is None


def written(ago: timedelta, text: str) -> str:
    return f"[{(datetime.now() - ago).strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]} {text}\n"


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(TRAP)

    async def test() -> None:
        emitted: list[Evidence] = []
        sensor = DaemonLogSensor(emitted.append, Source.SERVER_LOG, path, LogTail(path))
        assert sensor.state().present
        assert sensor.name == "serverlog"
        before = time.monotonic()
        with path.open("a") as log:
            log.write(written(timedelta(seconds=0.5), "Server 479] Server is handling a fatal GPU error."))
            log.write(written(timedelta(0), "Server 479] Client {PID: 9, Context: 1} encountered a fatal GPU error."))
            log.write("no line of a daemon\n")
            log.write(written(timedelta(hours=2), "Server 479] Destroy server context on device 0"))
        now = time.monotonic()
        await until(lambda: len(emitted) == 3)
        began, culprit, ended = emitted
        assert began.happened_at is not None
        assert before - 0.5 - began.uncertainty <= began.happened_at <= now - 0.5 + MILLISECOND
        assert began.uncertainty >= MILLISECOND
        assert culprit.what == ServerSays("culprit", 479, 9)
        assert (began.trust, culprit.trust) == (Trust.NONE, Trust.NONE)
        # Two hours off is another time zone, not an old line.
        assert (ended.happened_at, ended.uncertainty) == (None, 0.0)
        assert len({evidence.serial for evidence in emitted}) == 3
        sensor.close()
        sensor.close()
        assert not sensor.state().present

    asyncio.run(asyncio.wait_for(test(), 20))


def test_what_was_written_before_the_watch_stood_is_read(tmp_path: Path) -> None:
    path = tmp_path / "control.log"
    path.write_text("")
    tail = LogTail(path)
    path.write_text(written(timedelta(0), "Control 73] Server 95 exited with status 1"))

    async def test() -> None:
        emitted: list[Evidence] = []
        sensor = DaemonLogSensor(emitted.append, Source.CONTROL_LOG, path, tail)
        assert [evidence.what for evidence in emitted] == [ServerSays("server_exited", 95)]
        sensor.close()

    asyncio.run(test())


def test_absent_without_a_log(tmp_path: Path) -> None:
    async def test() -> None:
        path = tmp_path / "server.log"
        sensor = DaemonLogSensor(lambda _: None, Source.SERVER_LOG, path, LogTail(path))
        assert not sensor.state().present
        assert "No such file" in sensor.state().detail
        sensor.close()

    asyncio.run(test())


def test_servers_and_clients_that_are_made_up_take_no_memory() -> None:
    reader = LogReader()
    tracemalloc.start()
    try:
        for pid in range(20_000):
            read(f"{STAMP}Server   {pid}] Server is handling a fatal GPU error.\n", reader)
            read(f"{STAMP}Server   {pid}] The following devices will be reset:\n", reader)
            read(f"{STAMP}Server   1] Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down\n", reader)
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
