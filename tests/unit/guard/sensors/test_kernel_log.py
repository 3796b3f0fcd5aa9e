"""The kernel log: Xid lines of every form, nothing but the kernel's own, no line twice and none lost unsaid."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.guard.evidence import Evidence, Lost, Trust, Xid
from mpsguard.guard.sensors.kernel_log import KernelLine, KernelLogSensor, parse_record
from mpsguard.linux.boot import resume_after
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until

KMSG = Path("/dev/kmsg")
USER_FACILITY = 10


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (b"5,0,0,-;Linux version\n", KernelLine(0, 0, 0.0, False, "Linux version")),
        (
            b"6,339,5140900,-,caller=T12;NVRM: x\n SUBSYSTEM=pci\n DEVICE=+pci:0\n",
            KernelLine(339, 0, 5.1409, False, "NVRM: x"),
        ),
        (b"12,7,1,c;rest\n", KernelLine(7, 1, 1e-6, True, "rest")),
        (b"3,8,1,-;\\x1b[31mred\\x0a\\x5cx41 \\xc3\\xa4\n", KernelLine(8, 0, 1e-6, False, "?[31mred?\\x41 ä")),
        (b"3,8,1,-;cut off", None),
        (b"3,8,1;too few\n", None),
        (b"3,x,1,-;no number\n", None),
        (b"", None),
    ],
)
def test_records(record: bytes, expected: KernelLine | None) -> None:
    assert parse_record(record) == expected


@given(st.binary(max_size=300) | st.from_regex(rb"\A[0-9,\-c]{5,40};(\\x[0-9a-f]{2}|[ -~]){0,80}\n\Z"))
def test_any_bytes_are_a_record_or_none(record: bytes) -> None:
    line = parse_record(record)
    assert line is None or line.text.isprintable()


class Device:
    """A pipe in packet mode: every write is one record, as every read of /dev/kmsg is; and the kernel's overrun."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_DIRECT)
        self.path = Path(f"/proc/self/fd/{self._read}")
        self.overruns = 0

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        os.close(self._write)

    def print(self, sequence: int, text: str, *, flags: str = "-", level: int = 3, at: float | None = None) -> None:
        stamp = int((time.monotonic() if at is None else at) * 1e6)
        self.raw(f"{level},{sequence},{stamp},{flags};{text}\n".encode())

    def raw(self, record: bytes) -> None:
        os.write(self._write, record)

    def read(self, fd: int, size: int) -> bytes:
        if self.overruns:
            self.overruns -= 1
            raise BrokenPipeError
        return os.read(fd, size)


XID = "NVRM: Xid (PCI:0000:18:00): 43, pid=7, name=a, Ch 00000008"


def serials(published: list[Evidence]) -> list[str]:
    return [evidence.serial for evidence in published if isinstance(evidence.what, Xid)]


def losses(published: list[Evidence]) -> int:
    return sum(isinstance(evidence.what, Lost) for evidence in published)


def run(test: Callable[[Device], Coroutine[None, None, None]]) -> None:
    with Device() as device:
        asyncio.run(asyncio.wait_for(test(device), 20))


def test_what_comes_is_published_with_its_time_and_number() -> None:
    async def test(device: Device) -> None:
        device.print(7, XID)
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        assert sensor.state().present
        before = time.monotonic()
        device.print(8, "usb 1-1: new device")
        device.print(9, XID)
        await until(lambda: bool(published))
        (evidence,) = published
        assert (evidence.serial, evidence.gpu, evidence.trust) == ("kmsg:9", "0000:18:00", Trust.NONE)
        assert evidence.process is None
        assert evidence.happened_at is not None
        assert before - evidence.uncertainty <= evidence.happened_at
        assert evidence.happened_at <= evidence.observed_at
        position = sensor.position()
        assert position is not None
        assert position[1] == 9
        assert resume_after(position) == 9
        sensor.close()
        sensor.close()
        assert sensor.position() is None

    run(test)


def test_a_clock_that_drifted_is_put_right() -> None:
    """The log's clock may be seconds off after weeks: the first record seen coming tells."""

    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        now = time.monotonic()
        device.print(1, "calibrates", at=now - 3.0)
        await until(lambda: (sensor.position() or (0, 0))[1] == 1)
        seen = time.monotonic()
        device.print(2, XID, at=now - 3.0 - 0.2)
        await until(lambda: bool(published))
        # By as much as the first one was seen late, and not more: that is its error.
        assert now - 0.2 <= (published[0].happened_at or 0.0) <= seen - 0.2
        assert published[0].uncertainty < 0.02
        sensor.close()

    run(test)


def test_old_records_are_less_sure_of_their_time() -> None:
    async def test(device: Device) -> None:
        device.print(1, XID)
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path, after=0)
        await until(lambda: bool(published))
        assert published[0].uncertainty >= time.monotonic() * 400e-6
        sensor.close()

    run(test)


def test_a_restart_repeats_and_loses_nothing() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        first = KernelLogSensor(published.append, path=device.path, after=-1)
        for sequence in range(5):
            device.print(sequence, XID)
        await until(lambda: len(published) == 5)
        position = first.position()
        first.close()
        # The ring still has the last two of those when the next guard reads it from its beginning.
        for sequence in range(3, 8):
            device.print(sequence, XID)
        second = KernelLogSensor(published.append, path=device.path, after=resume_after(position))
        await until(lambda: len(published) == 8)
        second.close()
        assert serials(published) == [f"kmsg:{sequence}" for sequence in range(8)]

    run(test)


def test_what_the_ring_has_lost_by_then_is_reported() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        device.print(10, XID)
        device.print(11, XID)
        sensor = KernelLogSensor(published.append, path=device.path, after=5)
        await until(lambda: len(published) == 3)
        assert published[0].what == Lost(-1)
        assert serials(published) == ["kmsg:10", "kmsg:11"]
        sensor.close()

    run(test)


def test_a_number_of_another_boot_does_not_silence_the_sensor() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        assert resume_after(("another boot", 900)) == -1
        assert resume_after(None) is None
        device.print(3, XID)
        sensor = KernelLogSensor(published.append, path=device.path, after=900)
        await until(lambda: losses(published) == 1)
        device.print(4, XID)
        await until(lambda: serials(published) == ["kmsg:4"])
        sensor.close()

    run(test)


def test_an_overrun_is_reported_once_and_reading_goes_on() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path, read=device.read)
        device.print(1, XID)
        await until(lambda: len(published) == 1)
        device.overruns = 1
        device.print(50, XID)
        device.print(51, XID)
        await until(lambda: len(serials(published)) == 3)
        assert [type(evidence.what) for evidence in published] == [Xid, Lost, Xid, Xid]
        sensor.close()

    run(test)


def test_torn_records_are_counted_and_passed_over() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        device.raw(b"3,1,")
        device.raw(b"3,1,5,-;NVRM: Xid (PCI:0000:18:00): 31, cut")
        device.print(2, XID)
        await until(lambda: bool(published))
        assert sensor.unreadable == 2
        assert serials(published) == ["kmsg:2"]
        sensor.close()

    run(test)


def test_a_line_in_two_pieces_is_put_together() -> None:
    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        device.print(1, "NVRM: Xid (PCI:0000:18:00", flags="c")
        device.print(2, "): 79, GPU has fallen off the bus.", flags="c")
        device.print(3, "NVRM: Xid (PCI:0000:18:00", flags="c")
        device.print(4, "): 79, not a piece of it", flags="-")
        device.print(5, XID)
        await until(lambda: len(published) == 2)
        assert serials(published) == ["kmsg:2", "kmsg:5"]
        sensor.close()

    run(test)


def test_a_flood_does_not_hold_up_the_loop() -> None:
    async def test(device: Device) -> None:
        pending = iter([f"3,{sequence},1,-;{XID}\n".encode() for sequence in range(2000)])

        def read(fd: int, size: int) -> bytes:
            try:
                return next(pending)
            except StopIteration:
                return os.read(fd, size)

        published: list[Evidence] = []
        device.print(2000, XID)
        sensor = KernelLogSensor(published.append, path=device.path, after=-1, read=read)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert len(published) < 1000
        await until(lambda: len(published) == 2001)
        assert losses(published) == 0
        sensor.close()

    run(test)


def test_user_space_cannot_forge_a_line() -> None:
    """A record of another facility than the kernel's, which is all that can be written to /dev/kmsg."""

    async def test(device: Device) -> None:
        published: list[Evidence] = []
        sensor = KernelLogSensor(published.append, path=device.path)
        device.print(1, XID, level=1 << 3 | 3)
        device.print(2, XID)
        await until(lambda: bool(published))
        assert serials(published) == ["kmsg:2"]
        sensor.close()

    run(test)


@pytest.mark.parametrize("path", ["no/such/device", "file"])
def test_absent_where_there_is_no_such_log(tmp_path: Path, path: str) -> None:
    (tmp_path / "file").write_text("a file cannot be waited for")

    async def test(device: Device) -> None:
        before = open_descriptors()
        sensor = KernelLogSensor(lambda _: None, path=tmp_path / path)
        assert not sensor.state().present
        assert sensor.state().detail
        assert sensor.position() is None
        assert opened_since(before) == []
        sensor.close()

    run(test)


def test_a_device_that_ends_is_absent_from_then_on() -> None:
    async def test(device: Device) -> None:
        def read(fd: int, size: int) -> bytes:
            if device.overruns:
                raise OSError(5, "Input/output error")
            return os.read(fd, size)

        sensor = KernelLogSensor(lambda _: None, path=device.path, read=read)
        device.overruns = 1
        device.print(1, XID)
        await until(lambda: not sensor.state().present)
        assert "Input/output error" in sensor.state().detail

    run(test)


@pytest.mark.root
class TestRealDevice:
    """The kernel's own device. What is written to it gets the facility of a user, whatever is asked for."""

    @pytest.fixture
    def marker(self) -> str:
        if os.geteuid() != 0 or not os.access(KMSG, os.R_OK | os.W_OK):
            pytest.skip("/dev/kmsg cannot be written here")
        return f"mpsguard-{uuid.uuid4().hex}: "

    @staticmethod
    def write(*lines: str) -> None:
        # The kernel allows a writer ten lines in five seconds (printk_devkmsg=ratelimit), for every opening anew.
        with KMSG.open("w") as device:
            for line in lines:
                device.write(f"<{USER_FACILITY << 3 | 5}>{line}\n")
                device.flush()

    def test_lines_are_read_as_they_come_and_again_by_number(self, marker: str) -> None:
        async def test(_: Device) -> None:
            published: list[Evidence] = []
            sensor = KernelLogSensor(published.append, facility=USER_FACILITY, marker=marker)
            before = time.monotonic()
            self.write(f"{marker}{XID}, esc \x1b[2J", f"not the marker {XID}")
            await until(lambda: bool(published))
            xid = published[0].what
            assert isinstance(xid, Xid)
            assert (xid.number, xid.text) == (43, "Ch 00000008, esc ?[2J")
            assert published[0].happened_at is not None
            error = published[0].uncertainty
            assert before - error <= published[0].happened_at <= time.monotonic() + error
            position = sensor.position()
            sensor.close()

            self.write(f"{marker}{XID} while no guard runs")
            again: list[Evidence] = []
            sensor = KernelLogSensor(again.append, after=resume_after(position), facility=USER_FACILITY, marker=marker)
            await until(lambda: bool(again))
            sensor.close()
            assert [evidence.serial for evidence in again] != [evidence.serial for evidence in published]
            assert [evidence.what.text for evidence in again if isinstance(evidence.what, Xid)] == [
                "Ch 00000008 while no guard runs"
            ]

        run(test)

    @pytest.mark.usefixtures("marker")
    def test_root_cannot_forge_a_line_of_the_driver(self) -> None:
        async def test(_: Device) -> None:
            published: list[Evidence] = []
            seen: list[Evidence] = []
            sensor = KernelLogSensor(published.append)
            witness = KernelLogSensor(seen.append, facility=1)
            with KMSG.open("w") as device:
                # Facility 0 asked for, and none.
                device.write(f"<3>{XID}\n")
                device.flush()
                device.write(f"{XID}\n")
            await until(lambda: len(seen) >= 2)
            await asyncio.sleep(0.02)
            assert published == []
            sensor.close()
            witness.close()

        run(test)
