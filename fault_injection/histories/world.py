# long: one world, with state that all its events share
"""A world in which things go wrong: lanes, clients, programs beside MPS, and all that the sensors say of it.

Evidence follows what was measured under MPS (H200, driver 580.159.04; docs/concepts/architecture.md,
docs/reference/faults.md) and what a hostile process can add to it. The world knows which processes did wrong, which
triage must find out.
"""

import heapq
import random
from collections.abc import Callable
from typing import Final

import msgspec

from mpsguard.guard.evidence import (
    ClientCame,
    Evidence,
    FaultContained,
    LaneChanged,
    LogRead,
    Lost,
    Observation,
    OwnDump,
    ProcessEnded,
    ServerSays,
    SmError,
    Source,
    Trust,
    UvmFault,
    WorkRepeated,
    Xid,
    ZoneHit,
)
from mpsguard.guard.model import TOLD_TO_QUIT
from mpsguard.linux.identity import ProcessKey

GPUS: Final = ("0000:18:00", "0000:2a:00")
PAGES: Final = (0x7F0000000000, 0x7F0000001000, 0x0)
"""Few, so that different programs fault at the same address."""
MISALIGNED, ELSEWHERE = "Misaligned Address", "Illegal Instruction Encoding"
"""Exceptions: of a client's own fault; of code that was looked for where another copy of the driver has it."""
_PIDS: Final = 40
"""Few, so that they are given away again soon."""


class Lane:
    """One control daemon with its server."""

    def __init__(self, name: str, gpu: str, server: int) -> None:
        self.name = name
        self.gpu = gpu
        self.server = server
        self.clients: dict[ProcessKey, int] = {}
        """Alive, and known to the guard, with their users."""
        self.ghosts: list[ProcessKey] = []
        """Ended, but with work or a process that can still do something."""
        self.left: tuple[int, ProcessKey, float] | None = None
        """A page, and the ended client with work that will fault there again, from a time on."""
        self.sentinel = False
        self.torn_down: set[ProcessKey] = set()
        """Living clients with GPU work that has ended for good."""
        self.recovers_at = 0.0
        """Clients that come before wait."""
        self.last_came = 0.0


class World:
    """Makes evidence, in whatever order it arrives; `arrivals` sorts it."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.evidence: list[tuple[float, Evidence]] = []
        self.guilty: dict[ProcessKey, list[float]] = {}
        """When each process did something wrong."""
        self.ended: dict[ProcessKey, float] = {}
        self.came: dict[ProcessKey, float] = {}
        self.lanes: list[Lane] = []
        self.told: list[str] = []
        """What happened, for people."""
        self._agenda: list[tuple[float, int, Callable[[float], object]]] = []
        self._ticks = 100
        self._serial = 0
        self._free = list(range(100, 100 + _PIDS))
        self._log_delay = chance.choice((0.0, 0.0, 0.0, 0.5, 3.0, 6.0))
        self._log_whole_since = 0.0
        self._log_taken = 0.0
        """When the last line so far of the kernel log arrives."""
        self._fanotify = chance.random() < 0.7
        for index in range(chance.choice((1, 1, 2, 3))):
            lane = Lane(f"default-{index}", chance.choice(GPUS), 1000 + index)
            lane.sentinel = chance.random() < 0.3
            self.lanes.append(lane)
            if chance.random() < 0.7:
                self.say(0.0, Source.LANE, LaneChanged("default", lane.name, "ACTIVE", "no server yet", ()))

    def then(self, at: float, happens: Callable[[float], object]) -> None:
        """Something will happen, and is told when."""
        self._serial += 1
        heapq.heappush(self._agenda, (at, self._serial, happens))

    def go_on(self) -> None:
        """Let everything happen that will, in its order."""
        while self._agenda:
            at, _, happens = heapq.heappop(self._agenda)
            happens(at)

    def arrivals(self) -> list[tuple[float, Evidence]]:
        """All evidence with when it arrived, in that order."""
        return sorted(self.evidence, key=lambda pair: pair[0])

    def say(
        self,
        at: float,
        source: Source,
        what: Observation,
        process: ProcessKey | None = None,
        *,
        gpu: str | None = None,
        trust: Trust = Trust.NONE,
        late: float = 0.001,
        serial: str = "",
    ) -> None:
        """One observation of what happened at ``at``, which arrives ``late`` seconds later."""
        self._serial += 1
        seen = Evidence(
            source, at + late, what, happened_at=at, gpu=gpu, process=process, trust=trust,
            serial=serial or f"{source}:{self._serial}",
        )  # fmt: skip
        self.evidence.append((at + late, seen))

    def xid(self, at: float, number: int, pid: int | None, gpu: str, words: str | int = "...") -> None:
        """A line of the kernel log with its words, or the page of a memory fault: it may come late, or be lost."""
        if self.chance.random() < 0.04:
            late = self.chance.uniform(0.001, 1.0)
            self.say(at, Source.KERNEL_LOG, Lost(-1), late=late)
            self._log_whole_since = self._log_taken = max(self._log_taken, at + late)
            return
        text = words
        if isinstance(text, int):
            text = f"MMU Fault: ENGINE GRAPHICS faulted @ 0x{text >> 32:x}_{text & 0xFFFFFFFF:08x}."
        late = self.chance.uniform(0.001, 0.02) + (self._log_delay if self.chance.random() < 0.5 else 0.0)
        self.say(at, Source.KERNEL_LOG, Xid(number, pid, text), gpu=gpu, late=late)
        self._log_taken = max(self._log_taken, at + late)

    def log_read(self, at: float) -> None:
        """Tell that the kernel log was read to its end, as soon as all that was written has arrived."""
        if at <= self._log_taken:
            self.then(self._log_taken + 0.001, self.log_read)
        else:
            self.say(at, Source.KERNEL_LOG, LogRead(self._log_whole_since), late=0.0)

    def server(self, at: float, lane: Lane, what: str, client: int | None = None) -> None:
        """A line of a server's log."""
        source = Source.CONTROL_LOG if what == "server_exited" else Source.SERVER_LOG
        self.say(at, source, ServerSays(what, lane.server, client, lane.name), late=self.chance.uniform(0.001, 0.01))

    def process(self, pid: int | None = None) -> ProcessKey:
        """A new process, with a pid that another one may have had."""
        self._ticks += 1
        pid = self.chance.choice(self._free) if pid is None else pid
        self._free.remove(pid)
        return ProcessKey(pid, self._ticks)

    def did(self, process: ProcessKey, at: float, what: str) -> None:
        """It did something wrong."""
        self.guilty.setdefault(process, []).append(at)
        self.told.append(f"{at:8.3f} {process.pid}.{process.start_ticks} {what}")

    def comes(self, at: float, lane: Lane, uid: int | None = None, pid: int | None = None) -> ProcessKey:
        """A client comes to a lane; work that another left there may fault in its queue."""
        process = self.process(pid)
        uid = self.chance.choice((1000, 1001, 65534)) if uid is None else uid
        lane.clients[process] = uid
        lane.last_came = self.came[process] = at
        self.told.append(f"{at:8.3f} {process.pid}.{process.start_ticks} comes to {lane.name}")
        self.say(at, Source.PROCESSES, ClientCame("default", lane.name, uid), process, trust=Trust.PROOF, late=0.0)
        if lane.left is not None and self.chance.random() < 0.7:
            self.then(at + self.chance.uniform(0.05, 3.0), lambda then: self._comes_back(then, lane, process))
        return process

    def _comes_back(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """Work that an ended client left faults in the queue of one that came since."""
        if lane.left is None or process not in lane.clients:
            return
        page, author, since = lane.left
        if at < since:
            # The GPU recovers from the first fault of that work until the kernel log has its line.
            return
        self.did(author, at, f"left work at 0x{page:x} that faults in the queue of {process.pid}")
        self._queue(at, process, page, lane)
        self._server_falls(at, lane, page)

    def ends(
        self, at: float, lane: Lane, process: ProcessKey, *, code: int | None, signal: int | None, kept: bool = False,
        seen: float = 0.0,
    ) -> bool:  # fmt: skip
        """A client's process ends, which is seen ``seen`` seconds later; False if it had ended already."""
        if lane.clients.pop(process, None) is None:
            return False
        self.ended[process] = at + seen
        how = f"{signal or code}{', kept' if kept else ''}"
        self.told.append(f"{at:8.3f} {process.pid}.{process.start_ticks} ends: {how}")
        what = ProcessEnded(code, signal, False, None, (lane.server,), kept)
        self.say(at + seen, Source.PROCESSES, what, process, trust=Trust.PROOF)
        self.then(at + seen, lambda _: self._free.append(process.pid))
        return True

    # What a client does.

    def memory_fault(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """A wild access."""
        if process not in lane.clients or process in lane.torn_down:
            return
        page = self.chance.choice(PAGES)
        self.did(process, at, f"memory fault at 0x{page:x}")
        if self.chance.random() < 0.85:
            self._queue(at, process, page, lane)
        self._server_falls(at, lane, page)

    def contained(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """A fault that the patched module keeps with its client; its list names that process, whatever became of it."""
        if process not in lane.clients or process in lane.torn_down:
            return
        self.did(process, at, "contained fault")
        fault = FaultContained(PAGES[0], "write", "invalid pte", "sm")
        trust = self.chance.choice((Trust.HINT, Trust.PROOF))
        if self.chance.random() < 0.3:
            # The module's signal ends it before the list is read, and its pid is given away.
            self.ends(at, lane, process, code=None, signal=7)
            self.then(at + 0.002, lambda then: self._recycled(then, lane, process))
        else:
            self._queue(at, process, PAGES[0], lane)
        self.say(at, Source.KMOD, fault, process, trust=trust, late=0.003)

    def _recycled(self, at: float, lane: Lane, process: ProcessKey) -> None:
        if process.pid in self._free:
            self.comes(at, lane, 1000, pid=process.pid)

    def zone(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """An access that a zone absorbed."""
        if process not in lane.clients or process in lane.torn_down:
            return
        self.did(process, at, "access in a zone")
        self.say(at, Source.UVM, ZoneHit(PAGES[0], "write", 1, "back zone", 17, 4096), process, trust=Trust.PROOF)

    def sm_fault(self, at: float, lane: Lane, process: ProcessKey, *, trap: bool = False) -> None:
        """A misaligned access, or a trap; of a client, or of one that has ended and runs on."""
        if process in lane.torn_down or (process not in lane.clients and process not in self.ended):
            return
        self.did(process, at, "trap" if trap else "SM fault")
        there = [each for each in lane.clients if each not in lane.torn_down]
        self._sm_lines(at + 0.01, lane, lane.server, "" if trap else MISALIGNED)
        self._dumps(at, lane, process, trap)
        self._teardown(at + 0.015, lane, None)
        for each in there:
            if self.chance.random() < 0.4:
                begins = at + self.chance.uniform(0.1, 3.0)
                again = ("" if trap else MISALIGNED) if each == process else None
                self.then(begins, lambda then, each=each, again=again: self._repeats(then, lane, each, again, at))  # type: ignore[misc]

    def _sm_lines(self, at: float, lane: Lane, pid: int, exception: str) -> None:
        if exception:
            self.xid(at, 13, None, lane.gpu, f"Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): {exception}")
        self.xid(at + 0.002, 43, pid, lane.gpu)

    def _lines_outside_of_mps(self, at: float, lane: Lane, process: ProcessKey, exception: str) -> None:
        """The lines about the SM have no pid or that of any process with work at the time, the last one its own."""
        if not exception:
            self.xid(at + 0.002, 43, process.pid, lane.gpu)
            return
        seen = self.chance.choice((None, process.pid, *(each.pid for each in lane.clients)))
        self.xid(at, 13, seen, lane.gpu, f"Graphics SM Warp Exception on (GPC 1, TPC 2, SM 0): {exception}")
        self.xid(at + 0.001, 13, seen, lane.gpu, "Graphics Exception: ESR 0x519730=0x501000f 0x519734=0x0")
        self.xid(at + 0.003, 13, process.pid, lane.gpu, "Graphics Exception: channel 0x0000005f, Class 0000cbc0")

    def _repeats(self, at: float, lane: Lane, process: ProcessKey, again: str | None, lost: float) -> None:
        """A client repeats its lost work alone, outside of MPS.

        Args:
            at: when it begins.
            lane: the one that it was on.
            process: the client.
            again: the exception of its own fault ("" for a trap), which comes again; None for an innocent client.
            lost: when the fault was.
        """
        if process not in lane.clients:
            return
        over = at + self.chance.uniform(0.2, 2.0)
        what = self.chance.choice(("honest", "honest", "honest", "honest", "liar", "another copy", "killed"))
        outcome = "completed" if again is None else "faulted"
        fault = again
        if what == "liar" and again is None:
            self.did(process, lost, "will accuse itself, and nothing of its lost work")
            outcome, fault = "faulted", self.chance.choice((None, MISALIGNED, ""))
        elif what == "liar":
            outcome, fault = "completed", None
        elif what == "another copy" and again is None:
            outcome, fault = self.chance.choice(("faulted", "no_result")), ELSEWHERE
        if fault is not None:
            self.did(process, over - 0.05, "faults outside of MPS")
            self._lines_outside_of_mps(over - 0.05, lane, process, fault)
        if self.chance.random() < 0.9:
            self._says(at, process, "under_way")
        if what != "killed":
            self._says(over, process, outcome)

    def _says(self, at: float, process: ProcessKey, outcome: str) -> None:
        late = self.chance.uniform(0.0, 0.1) if self.chance.random() < 0.9 else self.chance.uniform(0.1, 2.0)
        self._serial += 1
        seen = Evidence(
            Source.PRELOAD, at + late, WorkRepeated(outcome), process=process, serial=f"preload:{self._serial}"
        )
        self.evidence.append((at + late, seen))
        if outcome == "faulted":
            self.then(at + late + 0.001, self.log_read)

    def crash(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """It ends with work in flight."""
        signal = self.chance.choice((9, 11, None))
        kept = self.chance.random() < 0.6
        code = None if signal else 0
        if not self.ends(at, lane, process, code=code, signal=signal, kept=kept, seen=0.0 if kept else 0.23):
            return
        if process in lane.torn_down:
            return
        self.did(process, at, "its work was in flight")
        if kept:
            lane.ghosts.append(process)
            if not lane.clients:
                # Its address space is not taken apart, so that nothing has faulted before a newcomer has its place.
                lane.left = self.chance.choice(PAGES), process, at
        else:
            self._left_work(at, lane, process)

    def _left_work(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """Let work continue without its address space: the server notices only if another client is there."""
        page = self.chance.choice(PAGES)
        if lane.clients:
            self.xid(at + 0.15, 31, self.chance.choice(list(lane.clients)).pid, lane.gpu, page)
            self.then(at + 0.151, lambda then: self._teardown(then, lane, None))
        else:
            self.xid(at + 0.18, 31, lane.server, lane.gpu, page)
            lane.left = page, process, at + 0.18

    def execs(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """It becomes another program with work in flight: the process lives on."""
        if process not in lane.clients or process in lane.torn_down:
            return
        self.did(process, at, "exec with work in flight")
        others = [each for each in lane.clients if each != process]
        if others:
            self.xid(at + 0.15, 31, self.chance.choice(others).pid, lane.gpu, self.chance.choice(PAGES))
            self.then(at + 0.151, lambda then: self._teardown(then, lane, process))

    def leaves_a_child(self, at: float, lane: Lane, process: ProcessKey) -> None:
        """Its leader ends in order, and a process that shares all with it goes on."""
        if self.ends(at, lane, process, code=0, signal=None) and process not in lane.torn_down:
            lane.ghosts.append(process)

    def ghost_acts(self, at: float, lane: Lane) -> None:
        """What an ended client left running does wrong now."""
        if not lane.ghosts:
            return
        ghost = lane.ghosts.pop(self.chance.randrange(len(lane.ghosts)))
        if self.chance.random() < 0.6:
            self.sm_fault(at, lane, ghost, trap=self.chance.random() < 0.5)
        else:
            self.did(ghost, at, "its kernel outlives its address space")
            self._left_work(at, lane, ghost)

    # What others do.

    def stranger(self, at: float) -> None:
        """A program beside MPS faults."""
        gpu, pid = self.chance.choice(GPUS), self.chance.choice((4711, self.chance.choice(self._free)))
        kind = self.chance.choice((13, 31, 43))
        self.told.append(f"{at:8.3f} a stranger {pid} has Xid {kind} on {gpu}")
        if kind == 13:
            self.xid(at, 13, self.chance.choice((None, pid)), gpu)
        elif kind == 31:
            self.xid(at, 31, pid, gpu, self.chance.choice(PAGES))
        self.xid(at + 0.002, 43, pid, gpu)

    def forged_dump(self, at: float, lane: Lane) -> None:
        """A client of the lane, or a container under a victim's user, writes a dump that accuses another one."""
        if not lane.clients:
            return
        victim = self.chance.choice(list(lane.clients))
        liar = self.chance.choice(list(lane.clients))
        self.told.append(f"{at:8.3f} {liar.pid} forges a dump against {victim.pid}")
        if not self._fanotify:
            dump = OwnDump(raised=True, grids=1)
            self.say(at, Source.GPU_CORE, dump, victim, trust=Trust.HINT, serial=f"{victim.pid}.{victim.start_ticks}")
        if liar != victim:
            lie = SmError("misaligned address", 0x10, (victim,), (victim,), (), liar)
            self.say(at, Source.GPU_CORE, lie, trust=Trust.HINT)
            serial = f"{liar.pid}.{liar.start_ticks}"
            self.say(at, Source.GPU_CORE, OwnDump(False, 0), liar, trust=Trust.PROOF, serial=serial)

    def forged_log(self, at: float, lane: Lane) -> None:
        """The server's user writes into the server's log."""
        self.told.append(f"{at:8.3f} {lane.name}: forged log")
        for _ in range(self.chance.randrange(1, 4)):
            what = self.chance.choice(("fault_begins", "culprit", "sticky", "teardown", "server_exited"))
            client = self.chance.choice([None, *(each.pid for each in lane.clients), 4711])
            self.server(at, lane, what, client)

    def storm(self, at: float, lane: Lane) -> None:
        """One user starts and kills clients."""
        for number in range(self.chance.randrange(5, 25)):
            self.then(at + number * 0.05, lambda then: self._comes_and_dies(then, lane))

    def _comes_and_dies(self, at: float, lane: Lane) -> None:
        if at <= lane.recovers_at:
            return
        process = self.comes(at, lane, 65534)
        self.then(at + 0.02, lambda then: self.ends(then, lane, process, code=None, signal=9))

    def server_dies(self, at: float, lane: Lane) -> None:
        """Its clients end with it, and the next one starts."""
        lane.ghosts.clear()
        lane.left = None
        lane.torn_down |= set(lane.clients)
        lane.recovers_at = max(lane.recovers_at, at + 1.2)
        self.told.append(f"{at:8.3f} {lane.name}: the server dies")
        self.server(at, lane, "server_exited")
        self._clients_die(at, lane)
        self.then(at + 1.2, lambda then: self._is_empty(then, lane, at))
        lane.server += 10

    def _is_empty(self, at: float, lane: Lane, since: float) -> None:
        """Say that a lane has no server, unless a client has come since, as one may that waited for a recovery."""
        if lane.last_came <= since:
            self.say(at, Source.LANE, LaneChanged("default", lane.name, "ACTIVE", "no server yet", ()))

    def quits(self, at: float, lane: Lane) -> None:
        """Let a lane without clients end in order."""
        if not lane.clients and not lane.ghosts:
            self.say(at, Source.LANE, LaneChanged("default", lane.name, "DOWN", TOLD_TO_QUIT, ()))
            lane.left = None

    def _queue(self, at: float, process: ProcessKey, page: int, lane: Lane) -> None:
        fault = UvmFault(page + self.chance.choice((0, 16)), "write", "invalid PTE", True)
        gpu = self.chance.choice((lane.gpu, None))
        self.say(at, Source.UVM, fault, process, gpu=gpu, trust=Trust.PROOF, late=self.chance.uniform(0.001, 0.01))
        if self.chance.random() < 0.8:
            self.then(at + 0.001, self.log_read)

    def _server_falls(self, at: float, lane: Lane, page: int) -> None:
        names = [each.pid for each in lane.clients] or [lane.server]
        self.xid(at + 0.13, 31, self.chance.choice(names), lane.gpu, page)
        self.xid(at + 0.131, 43, lane.server, lane.gpu)
        self.then(at + self.chance.choice((0.005, 0.1)), lambda then: self._teardown(then, lane, None))

    def _teardown(self, at: float, lane: Lane, spared: ProcessKey | None) -> None:
        """Let the server log the clients that it tears down, and clean up after their end."""
        lane.torn_down |= set(lane.clients)
        lane.recovers_at = at + self.chance.uniform(0.3, 1.0)
        self.server(at, lane, "fault_begins")
        there = [each for each in lane.clients if each != spared]
        if there and self.chance.random() < 0.5:
            self.server(at + 0.001, lane, "culprit", self.chance.choice(there).pid)
        for each in there:
            self.server(at + 0.001, lane, self.chance.choice(("teardown", "sticky")), each.pid)
        self._clients_die(at, lane)
        lane.ghosts.clear()
        lane.left = None
        if self.chance.random() < 0.9:
            self._state(at + 0.02, lane, "FAULT")
        self.then(lane.recovers_at, lambda then: self._recovers(then, lane))

    def _recovers(self, at: float, lane: Lane) -> None:
        self.server(at, lane, "fault_ends")
        # The guard asks often, or is held up; a record of an older one does not tell.
        asked = self.chance.choice((at, at - self.chance.uniform(0.0, 0.05), at - self.chance.uniform(0.0, 1.0), None))
        self._state(at + 0.01, lane, "ACTIVE", asked)

    def _state(self, at: float, lane: Lane, word: str, fault_asked: float | None = None) -> None:
        said = LaneChanged("default", lane.name, word, "", (lane.server,), fault_asked)
        self.say(at, Source.LANE, said, trust=Trust.PROOF)

    def _clients_die(self, at: float, lane: Lane) -> None:
        for each in list(lane.clients):
            if self.chance.random() < 0.9:
                code, signal = self.chance.choice(((3, None), (0, None), (None, 6), (None, 9)))
                self._dies(at + self.chance.uniform(0.05, 0.6), lane, each, code, signal)

    def _dies(self, at: float, lane: Lane, process: ProcessKey, code: int | None, signal: int | None) -> None:
        self.then(at, lambda then: self.ends(then, lane, process, code=code, signal=signal))

    def _dumps(self, at: float, lane: Lane, culprit: ProcessKey, trap: bool) -> None:
        there = list(lane.clients)
        if lane.sentinel and not trap:
            unread = tuple(each for each in there if self.chance.random() < 0.1)
            across = tuple(each for each in there if each != culprit and self.chance.random() < 0.2)
            own = (culprit,) if culprit in lane.clients and culprit not in unread else ()
            place = SmError("misaligned address", 0x7F00, (*own, *across), own, unread)
            self.say(at + 0.05, Source.GPU_CORE, place, trust=Trust.HINT, late=self.chance.uniform(0.01, 2.0))
        for each in there:
            if self.chance.random() < 0.3:
                dump = OwnDump(raised=each == culprit and not trap, grids=self.chance.choice((0, 1)))
                trust = Trust.PROOF if self._fanotify else Trust.HINT
                serial = f"{each.pid}.{each.start_ticks}"
                self.say(at + 0.06, Source.GPU_CORE, dump, each, trust=trust, late=0.3, serial=serial)


def history(chance: random.Random) -> World:
    """One history, some thirty seconds long."""
    world = World(chance)
    at = 1.0
    for _ in range(chance.randrange(2, 8)):
        lane = chance.choice(world.lanes)
        world.then(at, lambda then, lane=lane: _scene(world, then, lane))  # type: ignore[misc]  # the lane of this turn
        at += chance.choice((0.1, 0.5, 2.0, 15.0)) * chance.uniform(0.5, 1.5)
    world.go_on()
    return world


def _scene(world: World, at: float, lane: Lane) -> None:
    """Clients come, and something happens soon after."""
    chance = world.chance
    if len(lane.clients) < 6:
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            if at > lane.recovers_at:
                world.comes(at, lane)
            else:
                world.then(lane.recovers_at + chance.uniform(0.02, 0.5), lambda then: world.comes(then, lane))
    _something_of_a_client(world, at, lane)
    happens: tuple[tuple[float, Callable[[float], object]], ...] = (
        (0.7 if lane.ghosts else 0.0, lambda then: world.ghost_acts(then, lane)),
        (0.3, lambda then: world.then(then + 10.0, lambda later: world.ghost_acts(later, lane))),
        (0.2, world.stranger),
        (0.15, lambda then: world.forged_dump(then, lane)),
        (0.1, lambda then: world.forged_log(then, lane)),
        (0.1, lambda then: world.quits(then, lane)),
        (0.05, lambda then: world.storm(then, lane)),
        (0.05, lambda then: world.server_dies(then, lane)),
    )
    for probability, event in happens:
        if chance.random() < probability:
            world.then(at + chance.uniform(0.0, 3.0), event)


def _something_of_a_client(world: World, at: float, lane: Lane) -> None:
    chance = world.chance
    if not lane.clients or chance.random() < 0.15:
        return
    able = [each for each in lane.clients if each not in lane.torn_down]
    if not able:
        return
    who = chance.choice(able)
    code, signal = chance.choice(((0, None), (None, 9), (3, None)))
    deeds: tuple[Callable[[float], object], ...] = (
        lambda then: world.memory_fault(then, lane, who),
        lambda then: world.memory_fault(then, lane, who),
        lambda then: world.sm_fault(then, lane, who),
        lambda then: world.sm_fault(then, lane, who, trap=True),
        lambda then: world.crash(then, lane, who),
        lambda then: world.crash(then, lane, who),
        lambda then: world.execs(then, lane, who),
        lambda then: world.leaves_a_child(then, lane, who),
        lambda then: world.contained(then, lane, who),
        lambda then: world.zone(then, lane, who),
        lambda then: world.ends(then, lane, who, code=code, signal=signal, kept=signal is not None),
    )
    world.then(at + chance.choice((0.05, 0.3, 1.0, 12.0)), chance.choice(deeds))


def line(at: float, evidence: Evidence) -> str:
    """One piece of evidence as it arrived, for people."""
    who = f" of {evidence.process.pid}.{evidence.process.start_ticks}" if evidence.process else ""
    when = evidence.happened_at if evidence.happened_at is not None else evidence.observed_at
    what = msgspec.json.encode(evidence.what).decode()
    return f"{at:8.3f} (of {when:8.3f}) {evidence.source} {evidence.gpu or ''}{who} {what}"
