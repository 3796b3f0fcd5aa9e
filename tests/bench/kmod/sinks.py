"""What only a GPU with the patched nvidia-uvm answers, asked one by one by `fault_injection/cuda/sinks.cu`.

Each question has an MPS server of its own: if the answer is no, all clients of that server end. An innocent client runs
beside the one that faults, adds to its own memory and counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kmod_patch import loaded
from kmod_patch.loaded import Loaded
from tests.bench.core.client import Clients
from tests.bench.core.errors import NotRunError, SuiteError
from tests.bench.core.events import Outcome
from tests.bench.core.programs import compile_cuda, find_control
from tests.bench.core.stock import stock_daemon
from tests.bench.results.recorder import Recorder

PARAMETERS: Final = Path("/sys/module/nvidia_uvm/parameters")
WANTED: Final = {"uvm_fault_isolation_signal": "0", "uvm_fault_isolation_without_agent": "1"}
"""The client is to live until it has answered, and this run is its own agent. An older version has neither."""
RUNS: Final = 3
DEADLINE_S: Final = 120.0
BAR: Final = "the accesses end, a sink reads as 0, the client's own memory and the one beside it are as they must be"


@dataclass(frozen=True)
class Question:
    """One row of the result."""

    what: str
    programs: tuple[str, ...]
    """Of `sinks.cu`, at the same time."""
    together: bool = False
    """They wait for a word, and begin together."""


QUESTIONS: Final = (
    Question("sparse entry of 64 KiB: a store", ("64k-store",)),
    Question("sparse entry of 64 KiB: a load", ("64k-load",)),
    Question("sparse entry of 64 KiB: an atomic", ("64k-atomic",)),
    Question("sparse entry of 4 KiB: a store", ("4k-store",)),
    Question("sparse entry of 4 KiB: a load", ("4k-load",)),
    Question("sparse entry of 4 KiB: an atomic", ("4k-atomic",)),
    Question("sparse entry of 2 MiB, over a mapping: a store", ("2m-store",)),
    Question("sparse entry of 2 MiB, over a mapping: an atomic", ("2m-atomic",)),
    Question("sparse entry of 64 KiB beside a table of 4 KiB entries: a store", ("64k-store-beside-4k",)),
    Question("sparse entry of 64 KiB beside a table of 4 KiB entries: a load", ("64k-load-beside-4k",)),
    Question("copy engine: a copy to a sink", ("copy-to",)),
    Question("copy engine: a copy from a sink", ("copy-from",)),
    Question("PBDMA: a semaphore's release in a sink", ("release",)),
    Question("PBDMA: a semaphore's acquire in a sink", ("acquire",)),
    Question("stores of one client and atomics of another", ("store-storm", "atomic-storm"), together=True),
)


def refusal(found: Loaded) -> str | None:
    """Why nothing can be asked where this is loaded; None if it can."""
    if found.state != "ours":
        ours = "mpsguard-kmod dkms TREE, then modprobe nvidia-uvm, on a machine with a GPU"
        return f"{found.summary}; this needs ours: {ours}"
    if found.parameters.get(loaded.PREFIX) not in {"1", "2"}:
        return f"{found.summary}; this needs {loaded.PREFIX}=1"
    return None


def objection(culprits: Sequence[Outcome], innocent: Outcome) -> str:
    """What was not as BAR says; "" if all was."""
    for outcome in culprits:
        answer = outcome.find("answer")
        if not outcome.ok or answer is None:
            return outcome.describe()
        if answer.number("value") != 0 or answer.members.get("intact") is not True:
            return f"{outcome.label}: {dict(answer.members)}"
    for outcome in (*culprits, innocent):
        finished = outcome.find("finished")
        if not outcome.ok or finished is None or finished.members.get("exact") is not True:
            return outcome.describe()
    return ""


@contextmanager
def parameters(wanted: Mapping[str, str], directory: Path = PARAMETERS) -> Iterator[None]:
    """Set the module's parameters of these names, as far as it has them, and put them back.

    Raises:
        NotRunError: They cannot be written: this needs root.
    """
    before = {name: (directory / name).read_text() for name in wanted if (directory / name).exists()}
    try:
        for name in before:
            (directory / name).write_text(wanted[name])
    except OSError as error:
        raise NotRunError(f"{error.filename}: {error.strerror}: this needs root") from None
    try:
        yield
    finally:
        for name, text in before.items():
            (directory / name).write_text(text)


def run(recorder: Recorder, say: Callable[[str], None]) -> None:
    """Ask every question, and add a row for each.

    Raises:
        NotRunError: This machine has not the patched module, nvcc or MPS.
        SuiteError: The program does not compile.
    """
    if (why := refusal(loaded.read())) is not None:
        raise NotRunError(why)
    control = find_control()
    with parameters(WANTED), tempfile.TemporaryDirectory(prefix="mpsguard-sinks-") as name:
        directory = Path(name)
        binary = compile_cuda("sinks", directory)
        for number, question in enumerate(QUESTIONS):
            absorbed = 0
            for attempt in range(RUNS):
                why = ask(question, control, binary, directory / f"{number}-{attempt}")
                say(f"{question.what}: {why or 'absorbed'}")
                absorbed += not why
            recorder.row(question.what, absorbed, count=RUNS, unit="runs", bar=BAR, holds=absorbed == RUNS, runs=RUNS)


def ask(question: Question, control: str, binary: Path, directory: Path) -> str:
    """One run; what was not as it must be, "" if all was."""
    try:
        with stock_daemon(control, directory) as daemon, Clients() as clients:
            innocent = clients.start([str(binary), "innocent"], daemon.pipe_directory, "innocent")
            innocent.wait_for("ready")
            culprits = [clients.start([str(binary), name], daemon.pipe_directory, name) for name in question.programs]
            if question.together:
                for culprit in culprits:
                    culprit.wait_for("ready")
                for culprit in culprits:
                    culprit.go()
            outcomes = [culprit.finish(DEADLINE_S) for culprit in culprits]
            innocent.stop()
            return objection(outcomes, innocent.finish(DEADLINE_S))
    except (SuiteError, TimeoutError) as error:
        return str(error)
