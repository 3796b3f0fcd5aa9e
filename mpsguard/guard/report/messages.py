"""Sentences for observations, verdicts and advice. They are plain text: the caller escapes them."""

import signal
from collections.abc import Mapping
from typing import Final

from mpsguard.guard.evidence import (
    ClientCame,
    DeviceHealth,
    FaultContained,
    LaneChanged,
    LogRead,
    Lost,
    Observation,
    OwnDump,
    ProcessEnded,
    SecondDriverCame,
    ServerEnding,
    ServerSays,
    SmError,
    Source,
    UvmFault,
    WentOver,
    WorkRepeated,
    Xid,
    ZoneHit,
)
from mpsguard.guard.incident import Confidence, FaultClass, Incident, Suspect
from mpsguard.linux.identity import ProcessKey

Advice = Mapping[int, str]
"""What to do about an Xid, by its number."""

Commands = Mapping[ProcessKey, str]
"""Command line of each known client, by its identity."""

SENSORS: Final = {
    Source.UVM: "UVM events",
    Source.KERNEL_LOG: "kernel log",
    Source.NVML: "NVML",
    Source.SERVER_LOG: "server log",
    Source.CONTROL_LOG: "control log",
    Source.PROCESSES: "processes",
    Source.GPU_CORE: "GPU core dump",
    Source.LANE: "lane",
    Source.KMOD: "kernel module",
    Source.PRELOAD: "preload",
}

_FAULTS: Final = {
    FaultClass.MMU: "a memory fault",
    FaultClass.SM: "a fault inside a kernel",
    FaultClass.MMU_OR_SM: "a memory fault or one inside a kernel (not known which)",
    FaultClass.ENGINE: "a fault of a GPU engine",
    FaultClass.PROCESS: "a client's end",
    FaultClass.LANE: "the end of a lane's daemon",
    FaultClass.DEVICE: "a fault of the device itself",
}

_DOUBT: Final = {31: ", which under MPS is most often an innocent client"}
"""Caveat on the pid that the kernel's line for an Xid names. H200, driver 580.159.04: it was the culprit's in 23 of 130
faults (`scripts/gpu-suite triage`)."""

_SAID: Final = {
    "sticky": "that the error stays until the process ends,",
    "teardown": "that it tears down its context",
    "fault_begins": "that a fault has stopped it",
    "fault_ends": "that it serves again",
    "culprit": "that a fatal fault was met",
    "server_exited": "that it has exited",
}
"""What the lines of the server's log mean."""

_MOST_NAMED: Final = 3
"""Candidates that the verdict names; it only counts more of them."""

_REPEATED: Final = {
    "under_way": "is under way",
    "completed": "was completed without a fault",
    "faulted": "faulted again",
    "no_result": "had no result",
}
"""The outcomes of a repetition alone."""

_NO_CULPRIT: Final = frozenset({FaultClass.LANE, FaultClass.DEVICE})
"""Classes of faults that have no culprit."""

_DEFAULT_ADVICE: Final = {
    FaultClass.MMU: "Look for an out-of-bounds, freed or host pointer in the culprit: run it alone under "
    "`compute-sanitizer --tool memcheck`. Victims need no change; restart them.",
    FaultClass.SM: "Run the suspects alone, one by one, under `compute-sanitizer`; a GPU core dump "
    "(CUDA_ENABLE_COREDUMP_ON_EXCEPTION=1) names the kernel, and `sentinel = true` in the domain's configuration the "
    "process. Restart the victims.",
    FaultClass.MMU_OR_SM: "Run the suspects alone, one by one, under `compute-sanitizer`. The kernel log or the UVM "
    "events would tell the two kinds of fault apart: see what `mpsguard-ctl status` says of the sensors `kmsg` and "
    "`uvm`. Restart the victims.",
    FaultClass.ENGINE: "Run the suspects alone under `compute-sanitizer`. If it comes back with other programs too, "
    "suspect the driver or the hardware.",
    FaultClass.PROCESS: "Find out why the process ended (its own log, the kernel's OOM messages). Let programs end "
    "with `mpsguard-ctl terminate` rather than by signals while their kernels run.",
    FaultClass.LANE: "The guard starts the lane again by itself. If it happens again, look into control.log and "
    "server.log of the lane.",
    FaultClass.DEVICE: "Drain the GPU and look at `nvidia-smi -q`; a reset or a replacement may be due. No client is "
    "to blame.",
}


def observation(what: Observation) -> str:  # noqa: PLR0912 - a case for each observation
    """Return one observation as a sentence without its subject."""
    match what:
        case UvmFault():
            fatal = "fatal" if what.fatal else "non-fatal"
            return f"{fatal} GPU fault: {what.access} at 0x{what.address:x}, {what.fault_type}"
        case ZoneHit():
            side = f"{-what.beyond} bytes before" if what.beyond < 0 else f"{what.beyond} bytes past"
            return f"{what.access} at 0x{what.address:x} in a {what.part}: {side} allocation {what.region}"
        case FaultContained():
            return f"contained a fatal GPU fault: {what.access} at 0x{what.address:x}, {what.fault_type}, {what.engine}"
        case Xid():
            blamed = f" (the line names pid {what.pid}{_DOUBT.get(what.number, '')})" if what.pid is not None else ""
            where = [f"{name} {value}" for name in ("gpc", "tpc", "sm") if (value := getattr(what, name)) is not None]
            return f"Xid {what.number}{blamed}{' on ' + ' '.join(where) if where else ''}: {what.text}"
        case SmError():
            return f"an SM stopped with {what.why} at 0x{what.pc:x}: {_holders(what)}"
        case OwnDump():
            exception = "an exception in its own kernel" if what.raised else "no exception of its own"
            return f"wrote a GPU core dump: {_count(what.grids, 'kernel')} on the GPU, {exception}"
        case ServerSays():
            about = f" about client {what.client}" if what.client is not None else ""
            return f"server {what.server} says {_SAID.get(what.what, what.what.replace('_', ' '))}{about}"
        case ProcessEnded():
            return _ending(what)
        case ClientCame():
            return f"came to lane {what.lane} of domain {what.domain}"
        case SecondDriverCame():
            return f"connected a second driver to lane {what.lane}"
        case WentOver():
            return f"went over from lane {what.was} to lane {what.lane}, says its second driver"
        case WorkRepeated():
            return f"says that its work, repeated alone, {_REPEATED.get(what.outcome, 'has no known outcome')}"
        case ServerEnding():
            return f"told server {what.server} of lane {what.lane} to end: its clients had gone over, or ended"
        case LaneChanged():
            return f"lane {what.lane} is {what.state}: {what.reason}"
        case DeviceHealth():
            return f"{'fatal ' if what.fatal else ''}{what.what.replace('_', ' ')}: {what.value}"
        case LogRead():
            return f"has told all that was logged since {what.since:.3f} s"
        case Lost():
            return f"missed {what.count if what.count >= 0 else 'an unknown number of'} observation(s)"


def _holders(what: SmError) -> str:
    unread = f"; {_count(len(what.unread), 'client')} could not be looked at" if what.unread else ""
    if not what.holders:
        return f"code of no client{unread}"
    return f"code of process {' or '.join(str(process.pid) for process in what.holders)}{unread}"


def _ending(what: ProcessEnded) -> str:
    if what.signal is not None:
        try:
            how = f"ended by {signal.Signals(what.signal).name}"
        except ValueError:
            how = f"ended by signal {what.signal}"
    elif what.execed is not None:
        how = f"executed another program, which ended {what.execed or 'its CUDA process'}"
    elif what.exit_code is not None:
        how = f"ended with exit code {what.exit_code}"
    else:
        how = "ended, how is not known"
    killed = ", killed by the OOM killer" if what.oom_killed else ""
    in_flight = {True: ", with work in flight", False: ", with no work in flight", None: ""}[what.work_in_flight]
    return how + killed + in_flight


def suspect(process: Suspect, commands: Commands) -> str:
    """Return a process as a reader knows it: its pid, and its command line if it was a known client."""
    command = commands.get(process.process, "") if process.process else ""
    stranger = "" if process.client else ", no client of ours"
    return f"process {process.pid}" + (
        f" ({command}{stranger})" if command else stranger.replace(", ", " (") + ")" * bool(stranger)
    )


def verdict(incident: Incident, commands: Commands) -> str:
    """Return one sentence: what happened, its culprit, how sure that is, and which clients it hit."""
    fault = _FAULTS[incident.fault_class]
    if incident.xids:
        fault += f" (Xid {', '.join(map(str, incident.xids))})"
    if incident.gpu is not None:
        fault += f" on GPU {incident.gpu}"
    others = [victim for victim in incident.victims if victim != incident.culprit]
    hit = f"; it hit {_count(len(others), 'client')}" if others or incident.survived else "; no client was hit"
    if incident.survived:
        hit += f", and {_count(len(incident.survived), 'client')} survived it by a second driver"
    if incident.culprit is not None:
        culprit = _capital(suspect(incident.culprit, commands))
        if incident.fault_class is FaultClass.PROCESS:
            fault = (
                fault.replace("a client's end", "a fault by the way it ended") if others else "nothing but its own end"
            )
        sure = {
            Confidence.PROVEN: f"{culprit} caused {fault}; this is proven",
            Confidence.LIKELY: f"{culprit} most likely caused {fault}",
            Confidence.UNKNOWN: f"{culprit} may have caused {fault}; it is not known",
        }
        return sure[incident.confidence] + hit + "."
    if incident.fault_class in _NO_CULPRIT and not incident.candidates:
        return f"{_capital(fault)}; no process is to blame{hit}."
    if incident.candidates:
        if len(incident.candidates) > _MOST_NAMED:
            return f"{_capital(fault)}; the culprit is not known: one of {len(incident.candidates)}, listed below{hit}."
        suspects = ", ".join(suspect(candidate, commands) for candidate in incident.candidates)
        return f"{_capital(fault)}; the culprit is not known, but is among: {suspects}{hit}."
    return f"{_capital(fault)}; the culprit is not known{hit}."


def in_flight(incident: Incident) -> tuple[tuple[str, str], ...]:
    """Return a fact, whether the culprit's end left work on the GPU; () if the question does not arise."""
    if incident.work_in_flight is None and incident.fault_class is not FaultClass.PROCESS:
        return ()
    return (("work in flight", {True: "yes", False: "no", None: "not known"}[incident.work_in_flight]),)


def what_to_do(incident: Incident, advice: Advice) -> tuple[str, ...]:
    """Return the advice on the Xids, if there is any, then that on the class of fault."""
    steps = [f"Xid {number}: {advice[number]}" for number in incident.xids if number in advice]
    steps.append(_DEFAULT_ADVICE[incident.fault_class])
    if incident.confidence is Confidence.UNKNOWN and len(incident.candidates) > 1:
        steps.append("The culprit is one of several: do not punish one of them on this evidence.")
    return tuple(steps)


def shortened(track: str, length: int) -> str:
    """Shorten a track's name in the middle: it begins with the process and ends with the program's arguments."""
    if len(track) <= length:
        return track
    half = (length - 1) // 2
    return f"{track[:half]}…{track[-half:]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
