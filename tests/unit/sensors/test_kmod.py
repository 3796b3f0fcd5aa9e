"""The kmod sensor: what it makes of the module's uevents and of anything else; real netlink where there is some."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.evidence import Evidence, FaultContained, Lost, Source, Trust
from mpsguard.linux.nvidia.uevents import Uevent, Uevents, parse
from mpsguard.linux.processes.procfs import process_key
from mpsguard.sensors.kmod import KmodSensor, contained_fault, mode

EVENT: Uevent = {
    "ACTION": "change",
    "DEVPATH": "/module/nvidia_uvm",
    "SUBSYSTEM": "module",
    "NVIDIA_UVM_EVENT": "fault_contained",
    "PID": "4242",
    "VA": "0x7fff12345000",
    "ACCESS": "ATOMIC_STRONG",
    "TYPE": "INVALID_PTE",
    "ENGINE": "SM",
    "GPU": "GPU-6d6f636b-2d67-7075-0001-020304050607",
    "VEID": "3",
    "SEQNUM": "1200",
}


def as_bytes(event: Uevent) -> bytes:
    head = f"{event['ACTION']}@{event['DEVPATH']}"
    return b"\0".join(text.encode() for text in [head, *(f"{name}={value}" for name, value in event.items()), ""])


class Script(Uevents):
    """Uevents out of a list, told through a pipe so that the loop wakes up; the kernel cannot be made to send ours."""

    def __init__(self, *events: Uevent | Exception) -> None:
        self._events = list(events)
        self._ends = os.pipe()
        os.write(self._ends[1], b"x")

    def fileno(self) -> int:
        return self._ends[0]

    def read(self) -> Uevent | None:
        if not self._events:
            return None
        event = self._events.pop(0)
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        for fd in self._ends:
            os.close(fd)


@pytest.fixture(autouse=True)
def no_descriptor_is_left() -> Iterator[None]:
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) == before


def heard(*events: Uevent | Exception) -> tuple[list[Evidence], KmodSensor]:
    evidence: list[Evidence] = []

    async def listen() -> KmodSensor:
        sensor = KmodSensor(evidence.append, listen=lambda: Script(*events), key_of=process_key)
        # One turn is enough: the script is readable from the start.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sensor.close()
        sensor.close()
        return sensor

    return evidence, asyncio.run(listen())


def test_a_report_of_the_kernel_is_read() -> None:
    assert parse(as_bytes(EVENT)) == EVENT


@pytest.mark.parametrize("message", [b"", b"libudev\0\xfe\xed\xca\xfe", b"\0\0\0", b"no header\0A=1"])
def test_what_is_no_uevent_is_none(message: bytes) -> None:
    assert parse(message) is None


def test_a_contained_fault() -> None:
    assert contained_fault(EVENT) == (4242, FaultContained(0x7FFF12345000, "atomic strong", "invalid pte", "sm"))


@pytest.mark.parametrize(
    "change",
    [
        {"DEVPATH": "/module/other"},
        {"NVIDIA_UVM_EVENT": "other"},
        {"PID": "0"},
        {"PID": "-1"},
        {"PID": "x"},
        {"VA": "0x10000000000000000"},
        {"VA": "-1"},
        {"VA": ""},
        {"ACCESS": "wr\x1bite"},
        {"TYPE": ""},
        {"ENGINE": "A" * 41},
    ],
)
def test_a_report_that_is_not_as_it_should_be_is_none(change: Uevent) -> None:
    assert contained_fault({**EVENT, **change}) is None


@pytest.mark.parametrize("missing", ["PID", "VA", "ACCESS", "TYPE", "ENGINE", "DEVPATH", "NVIDIA_UVM_EVENT"])
def test_every_part_is_needed(missing: str) -> None:
    assert contained_fault({name: value for name, value in EVENT.items() if name != missing}) is None


def test_a_bare_pid_is_a_hint() -> None:
    evidence, sensor = heard({"ACTION": "add", "DEVPATH": "/devices/x"}, {**EVENT, "PID": str(os.getpid())})
    (one,) = evidence
    assert one.source is Source.KMOD
    assert one.process == process_key(os.getpid())
    assert one.trust is Trust.HINT
    assert sensor.unreadable == 0


@pytest.mark.parametrize(
    ("start", "alive", "trust"),
    [
        (0, "1", Trust.PROOF),
        (0, "0", Trust.HINT),
        (1, "1", Trust.NONE),
        (-1, "0", Trust.NONE),
        (0, "yes", Trust.HINT),
        (None, "1", Trust.HINT),
    ],
)
def test_the_start_time_of_a_process_that_lives_is_proof_and_another_one_is_another_process(
    start: int | None, alive: str, trust: Trust
) -> None:
    key = process_key(os.getpid())
    ticks = "?" if start is None else str(key.start_ticks + start)
    (one,), _ = heard({**EVENT, "PID": str(key.pid), "START": ticks, "ALIVE": alive})
    assert (one.trust, one.process) == (trust, None if trust is Trust.NONE else key)


def test_a_process_that_is_gone_is_not_named() -> None:
    ended = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(ended, 0)
    (one,), _ = heard({**EVENT, "PID": str(ended)})
    assert isinstance(one.what, FaultContained)
    assert (one.process, one.trust) == (None, Trust.NONE)


def test_an_unreadable_report_is_counted_and_the_next_is_taken() -> None:
    evidence, sensor = heard({**EVENT, "VA": "?"}, {**EVENT, "PID": str(os.getpid())})
    assert sensor.unreadable == 1
    assert len(evidence) == 1


def test_dropped_uevents_are_reported() -> None:
    evidence, _ = heard(OverflowError(), {**EVENT, "PID": str(os.getpid())})
    assert [type(each.what) for each in evidence] == [Lost, FaultContained]
    assert evidence[0].what == Lost(-1)


def test_an_error_ends_it_with_its_reason() -> None:
    states = []

    async def listen() -> None:
        sensor = KmodSensor(lambda _: None, listen=lambda: Script(OSError(5, "Input/output error")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        states.append(sensor.state())

    asyncio.run(listen())
    assert not states[0].present
    assert "Input/output error" in states[0].detail


def test_a_kernel_without_uevents_is_no_sensor() -> None:
    def refuse() -> Uevents:
        raise OSError(93, "Protocol not supported")

    async def listen() -> str:
        sensor = KmodSensor(lambda _: None, listen=refuse)
        sensor.close()
        return sensor.state().detail

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


def with_parameters(module: Path, **parameters: str) -> Path:
    (module / "parameters").mkdir(parents=True)
    for name, value in parameters.items():
        (module / "parameters" / name).write_text(f"{value}\n")
    return module


@pytest.mark.parametrize(
    ("policy", "said"),
    [("0", "off"), ("1", "on where a TSG is shared"), ("2", "on always"), ("9", "'9', which is unknown")],
)
def test_the_mode_is_reported(tmp_path: Path, policy: str, said: str) -> None:
    module = with_parameters(tmp_path / "m", uvm_fault_isolation=policy, uvm_fault_isolation_version="1.0")
    state = mode(module)
    assert state.present
    assert "1.0" in state.detail
    assert said in state.detail


def test_the_stock_module_contains_nothing(tmp_path: Path) -> None:
    state = mode(with_parameters(tmp_path / "m", uvm_ats_mode="1"))
    assert not state.present
    assert "stock" in state.detail


def test_no_module(tmp_path: Path) -> None:
    assert mode(tmp_path / "none").detail == "nvidia-uvm is not loaded"
