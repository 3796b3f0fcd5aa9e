"""The kmod sensor: what it makes of the module's list and uevents; real netlink where there is some."""

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from mpsguard.guard.evidence import ClientCame, Evidence, FaultContained, Lost, Source, Trust
from mpsguard.guard.incident import Confidence, Ground
from mpsguard.guard.model import Client
from mpsguard.guard.sensors import kmod
from mpsguard.guard.sensors.kmod import KmodSensor
from mpsguard.guard.triage.verdict import triage
from mpsguard.linux.boot import boot_id
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.nvidia.uevents import Uevent, Uevents, parse
from mpsguard.linux.processes.process import ProcessHandle
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until

EVENT: Uevent = {
    "ACTION": "change",
    "DEVPATH": "/module/nvidia_uvm",
    "SUBSYSTEM": "module",
    "NVIDIA_UVM_EVENT": "fault_contained",
    "PID": "4242",
    "START": "777",
    "ALIVE": "1",
    "ACCESS": "WRITE",
    "TYPE": "INVALID_PTE",
    "ENGINE": "SM",
    "GPU": "GPU-6d6f636b-2d67-7075-0001-020304050607",
    "VEID": "3",
    "SEQNUM": "1200",
}
A, B = ProcessKey(4242, 777), ProcessKey(4343, 888)
RECYCLED = 10_000


def line(process: ProcessKey = A, *, number: int = 1, at: float = 5.0, alive: bool = True, gone: bool = False) -> str:
    """A line as the module writes it; the owner that had ended has no number in it."""
    named = process if alive else ProcessKey(0, 0)
    return (
        f"{number} time={round(at * 1e9)} pid={named.pid} start={named.start_ticks} alive={alive:d} gone={gone:d} "
        "address=0x7fff12345000 access=WRITE type=INVALID_PTE engine=SM "
        "gpu=GPU-6d6f636b-2d67-7075-0001-020304050607 veid=3\n"
    )


def as_bytes(event: Uevent) -> bytes:
    head = f"{event['ACTION']}@{event['DEVPATH']}"
    return b"\0".join(text.encode() for text in [head, *(f"{name}={value}" for name, value in event.items()), ""])


class Script(Uevents):
    """Uevents out of a list, told through a pipe so that the loop wakes up; the kernel cannot be made to send ours."""

    def __init__(self, *events: Uevent | Exception) -> None:
        self._events: list[Uevent | Exception] = []
        self._ends = os.pipe()
        self.tell(*events)

    def tell(self, *events: Uevent | Exception) -> None:
        self._events += events
        if events:
            os.write(self._ends[1], b"x")

    def fileno(self) -> int:
        return self._ends[0]

    def read(self) -> Uevent | None:
        if not self._events:
            os.set_blocking(self._ends[0], False)
            with contextlib.suppress(BlockingIOError):
                os.read(self._ends[0], 4096)
            return None
        event = self._events.pop(0)
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        for fd in self._ends:
            os.close(fd)


class Guard:
    """A sensor with its list, its uevents and what it said."""

    def __init__(self, path: Path, after: int | None = None) -> None:
        self.path, self.events, self.evidence = path, Script(), list[Evidence]()
        self.sensor = KmodSensor(self.evidence.append, after=after, path=path, listen=lambda: self.events)

    def came(self, process: ProcessKey) -> None:
        handle = ProcessHandle.open(os.getpid())
        self.sensor.client_came(client(process), handle)
        handle.close()

    async def told(self, *lines: str, event: Uevent | Exception = EVENT) -> None:
        """The module adds these lines, and tells."""
        old = self.path.read_text() if self.path.exists() else ""
        self.path.write_text("".join(reversed(lines)) + old)
        self.events.tell(event)
        await turns()

    def named(self) -> list[tuple[ProcessKey | None, Trust]]:
        return [(each.process, each.trust) for each in self.evidence]


def is_open(path: Path) -> bool:
    return str(path) in {what for _, what in open_descriptors()}


async def turns() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def client(process: ProcessKey) -> Client:
    return Client(process, 1000, 1000, "train", "/", None, None, "default", "default-0", 0.0)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert opened_since(before) == []


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "list").write_text("")
    return tmp_path / "list"


def test_a_report_of_the_kernel_is_read() -> None:
    assert parse(as_bytes(EVENT)) == EVENT


@pytest.mark.parametrize("message", [b"", b"libudev\0\xfe\xed\xca\xfe", b"\0\0\0", b"no header\0A=1"])
def test_what_is_no_uevent_is_none(message: bytes) -> None:
    assert parse(message) is None


def test_a_client_of_this_guard_is_named_on_proof(path: Path) -> None:
    async def run() -> None:
        guard = Guard(path)
        guard.came(B)
        guard.came(A)
        await guard.told(line())
        (one,) = guard.evidence
        guard.sensor.close()
        guard.sensor.close()
        assert one.source is Source.KMOD
        assert (one.process, one.trust, one.observed_at) == (A, Trust.PROOF, 5.0)
        assert one.what == FaultContained(0x7FFF12345000, "write", "invalid pte", "sm")

    asyncio.run(run())


def test_a_line_is_told_once(path: Path) -> None:
    async def run() -> None:
        guard = Guard(path)
        guard.came(A)
        await guard.told(line())
        await guard.told()
        await guard.told(line(number=2, at=6.0))
        guard.sensor.close()
        assert [each.observed_at for each in guard.evidence] == [5.0, 6.0]
        assert len({each.serial for each in guard.evidence}) == 2

    asyncio.run(run())


def test_a_client_that_has_ended_since_is_named_on_proof(path: Path) -> None:
    async def run() -> None:
        guard = Guard(path)
        guard.came(A)
        guard.sensor.client_ended(client(A))
        await guard.told(line(gone=True))
        guard.sensor.close()
        assert guard.named() == [(A, Trust.PROOF)]

    asyncio.run(run())


def test_a_process_that_is_no_client_is_a_hint_and_an_owner_that_had_ended_is_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kmod, "_CLAIM_WITHIN", 0.001)

    async def run() -> None:
        guard = Guard(path)
        guard.came(A)
        await guard.told(line(B), line(A, number=2, at=6.0, alive=False))
        await until(lambda: len(guard.evidence) == 2)
        guard.sensor.close()
        assert sorted(guard.named(), key=str) == sorted([(B, Trust.HINT), (None, Trust.NONE)], key=str)

    asyncio.run(run())


def test_another_process_with_the_pid_is_not_accused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pid has been given to another client by the time its line is read; some owners were clients, too."""
    monkeypatch.setattr(kmod, "_CLAIM_WITHIN", 0.001)
    chance = Random(18)

    async def run() -> None:
        guard = Guard(path)
        right: dict[float, set[tuple[ProcessKey | None, Trust]]] = {}
        lines: list[str] = []
        for number in range(RECYCLED):
            owner = ProcessKey(1000 + number % 3000, 10 * number)
            heir = ProcessKey(owner.pid, owner.start_ticks + 1 + int(chance.random() * 5))
            at, known, alive = 1.0 + number, chance.random() < 0.5, chance.random() < 0.7
            if known:
                guard.came(owner)
                guard.sensor.client_ended(client(owner))
            guard.came(heir)
            right[at] = {(owner, Trust.PROOF if known else Trust.HINT) if alive else (None, Trust.NONE)}
            lines.append(line(owner, number=number + 1, at=at, alive=alive))
            if len(lines) == 100:
                path.write_text("".join(lines))
                lines.clear()
                guard.events.tell(EVENT)
                await turns()
        await until(lambda: len(guard.evidence) == RECYCLED)
        guard.sensor.close()
        wrong = [each for each in guard.evidence if (each.process, each.trust) not in right[each.observed_at]]
        assert wrong == []
        assert sum(each.trust is Trust.PROOF for each in guard.evidence) > RECYCLED // 5

    asyncio.run(run())


def test_the_program_that_a_process_executed_since_is_not_accused(path: Path) -> None:
    """Its pid and start time are the same; it was no client yet when the fault was."""
    later = ProcessKey(A.pid, A.start_ticks, execs=1)

    async def run() -> None:
        guard = Guard(path)
        guard.came(A)
        guard.came(later)
        await guard.told(line(at=time.monotonic() - 1.0), line(number=2, at=time.monotonic() + 1.0))
        guard.sensor.close()
        assert guard.named() == [(A, Trust.HINT), (later, Trust.PROOF)]

    asyncio.run(run())


def test_a_guard_that_was_restarted_names_the_culprit_from_the_list(path: Path) -> None:
    """The first one ends before it reads the line; the second one hears of no uevent, and finds its clients later."""

    async def run() -> None:
        first = Guard(path)
        first.came(A)
        path.write_text(line())
        position = first.sensor.position()
        first.sensor.close()
        assert first.evidence == []
        second = Guard(path, after=position[1])
        await turns()
        assert second.evidence == []
        assert second.sensor.position() < (boot_id(), 5_000_000_000)
        second.came(B)
        second.came(A)
        assert second.named() == [(A, Trust.PROOF)]
        assert second.sensor.position() == (boot_id(), 5_000_000_000)
        second.sensor.close()
        came = [
            Evidence(Source.PROCESSES, 20.0, ClientCame("default", "default-0"), process=each, trust=Trust.PROOF)
            for each in (A, B)
        ]
        (incident,) = triage([*came, *second.evidence])
        assert incident.culprit is not None
        assert incident.culprit.process == A
        assert (incident.confidence, incident.ground) == (Confidence.PROVEN, Ground.CONTAINED)
        third = Guard(path, after=second.sensor.position()[1])
        third.came(A)
        await turns()
        third.sensor.close()
        assert third.evidence == []

    asyncio.run(run())


def test_dropped_uevents_lose_nothing(path: Path) -> None:
    async def run() -> None:
        guard = Guard(path)
        guard.came(A)
        await guard.told(line(), event=OverflowError())
        guard.sensor.close()
        assert guard.named() == [(A, Trust.PROOF)]

    asyncio.run(run())


def test_unreadable_lines_are_reported_once_and_the_next_is_taken(path: Path) -> None:
    async def run() -> None:
        guard = Guard(path)
        guard.came(A)
        await guard.told("rubbish\n", line())
        await guard.told()
        guard.sensor.close()
        assert [type(each.what) for each in guard.evidence] == [Lost, FaultContained]
        assert guard.evidence[0].what == Lost(1)
        assert guard.sensor.unreadable == 1

    asyncio.run(run())


def test_a_report_without_a_list_is_not_passed_over_in_silence(tmp_path: Path) -> None:
    async def run() -> None:
        guard = Guard(tmp_path / "none")
        guard.events.tell(EVENT)
        await turns()
        guard.sensor.close()
        assert [each.what for each in guard.evidence] == [Lost(-1)]

    asyncio.run(run())


def test_the_list_comes_and_goes_with_the_module(path: Path) -> None:
    module = {"DEVPATH": "/module/nvidia_uvm", "SUBSYSTEM": "module"}

    async def run() -> None:
        path.unlink()
        guard = Guard(path)
        guard.came(A)
        await guard.told(line(), event={**module, "ACTION": "add"})
        assert guard.named() == [(A, Trust.PROOF)]
        assert is_open(path)
        guard.events.tell({**module, "ACTION": "remove"})
        await turns()
        assert not is_open(path)
        await guard.told(line(number=1, at=9.0), event={**module, "ACTION": "add"})
        guard.sensor.close()
        assert guard.named() == [(A, Trust.PROOF)] * 2

    asyncio.run(run())


def test_a_client_that_comes_is_reason_to_look_for_the_list_again(path: Path) -> None:
    async def run() -> None:
        path.unlink()
        guard = Guard(path)
        await turns()
        path.write_text(line())
        guard.came(A)
        guard.sensor.close()
        assert guard.named() == [(A, Trust.PROOF)]

    asyncio.run(run())


def test_an_error_ends_it_with_its_reason(path: Path) -> None:
    async def run() -> None:
        guard = Guard(path)
        guard.events.tell(OSError(5, "Input/output error"))
        await turns()
        state = guard.sensor.state()
        guard.sensor.close()
        assert not state.present
        assert "Input/output error" in state.detail

    asyncio.run(run())


def test_a_kernel_without_uevents_is_no_sensor(path: Path) -> None:
    def refuse() -> Uevents:
        raise OSError(93, "Protocol not supported")

    async def listen() -> str:
        sensor = KmodSensor(lambda _: None, path=path, listen=refuse)
        detail = sensor.state().detail
        sensor.close()
        return detail

    assert "Protocol not supported" in asyncio.run(listen())


def test_the_kernel_s_own_uevents_are_heard() -> None:
    """A uevent that root can ask for is not ours: it is heard and passed over."""
    trigger = Path("/sys/devices/virtual/mem/null/uevent")
    if not os.access(trigger, os.W_OK):
        pytest.skip(f"{trigger} cannot be written to: uevents cannot be asked for")
    events = Uevents()
    try:
        trigger.write_text("change")
        os.set_blocking(events.fileno(), True)
        found = events.read()
    finally:
        events.close()
    assert found is not None
    assert {"ACTION", "DEVPATH", "SUBSYSTEM", "SEQNUM"} <= found.keys()
