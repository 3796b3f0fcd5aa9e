"""How clients end: exit code or signal, and whether the kernel's out-of-memory killer did it.

Whether work was in flight is not known. What was looked at, for an unmodified client: a process that has ended has no
memory left in /proc; a zombie's fd and fdinfo are empty, and what was opened of them before answers ENOENT (tried on
6.18 with an ordinary file: the driver is not even asked); NVML books utilisation under MPS on the server. The server's
reaction does tell, by a fault right after the end, and that is triage's to see.
"""

import signal
import time
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from mpsguard.guard.evidence import Evidence, ProcessEnded, Source, Trust
from mpsguard.guard.model import Client
from mpsguard.guard.sensors.sensor import Sensor, SensorSetup, SensorState, register
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.processes import procfs
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.process_exit import ExitWatch

_PROC: Final = Path("/proc")


class Hierarchy(NamedTuple):
    """A mounted cgroup hierarchy that may account for memory."""

    unified: bool
    mount: Path
    root: str
    """Which cgroup is seen at the mount point."""

    def counters(self, cgroup: str) -> tuple[Path, ...]:
        """Where the kills in ``cgroup`` are counted, best first; OSError if it does not lie below the mount point.

        The kernel counts before it kills (``__oom_kill_process``, mm/oom_kill.c), whatever ran out of memory, the
        victim's cgroup or the machine: the count has grown once the process has ended. v1 (Linux 4.13) and
        memory.events.local (5.2) count the victims of this very cgroup, memory.events (4.13) those below it too.
        """
        below = Path(cgroup).relative_to(self.root) if Path(cgroup).is_relative_to(self.root) else None
        if below is None or ".." in below.parts:
            raise FileNotFoundError(f"cgroup {cgroup} is not to be seen from here")
        directory = self.mount / below
        if self.unified:
            return directory / "memory.events.local", directory / "memory.events"
        return (directory / "memory.oom_control",)


def hierarchies(mounts: Path = _PROC / "self" / "mountinfo") -> dict[bool, Hierarchy]:
    """The mounted hierarchies, v2 under True and v1's memory controller under False (proc_pid_mountinfo(5))."""
    found: dict[bool, Hierarchy] = {}
    for line in mounts.read_text(errors="replace").splitlines():
        mounted, _, kind = line.partition(" - ")
        root, directory = mounted.split()[3:5]
        filesystem, _, options = kind.split(maxsplit=2)
        if filesystem == "cgroup2" or (filesystem == "cgroup" and "memory" in options.split(",")):
            unified = filesystem == "cgroup2"
            found.setdefault(unified, Hierarchy(unified, Path(directory), root))
    return found


class _Since(NamedTuple):
    """A process's cgroup, and the kills in it that were not accounted for when the process came."""

    counters: tuple[Path, ...]
    unclaimed: int


class OomKills:
    """Tells whether a process that died of SIGKILL was killed for want of memory: the count of its cgroup has grown.

    Each kill is claimed by one process. It is a count, not a name: a process that is killed by hand is taken for the
    victim if the real one was a non-client in the same cgroup, killed since the client came. One that has changed its
    cgroup since it came is looked for in the wrong one.
    """

    def __init__(self, mounted: dict[bool, Hierarchy]) -> None:
        self._mounted = mounted
        self._since: dict[ProcessKey, _Since] = {}
        self._claimed: dict[tuple[Path, ...], int] = {}
        self.blind = 0
        """How many processes there were with kills that could not be counted."""
        self.blind_why = ""

    def came(self, process: ProcessKey) -> None:
        """Note the count of the process's cgroup, while /proc still says which it is."""
        try:
            counters = self._counters(process.pid)
            count = _count(counters)
        except OSError as error:
            self._is_blind(error)
            return
        claimed = self._claimed.setdefault(counters, 0)
        self._since[process] = _Since(counters, count - claimed)

    def left(self, process: ProcessKey, *, killed: bool) -> bool:
        """Return whether the process was the victim of a kill; False if not ``killed``, or not known."""
        since = self._since.pop(process, None)
        if since is None:
            return False
        counters = since.counters
        victim = False
        if killed:
            try:
                victim = _count(counters) - self._claimed[counters] > since.unclaimed
            except OSError as error:
                # The last process of a cgroup has ended, and its manager was quicker than we to remove it.
                self._is_blind(error)
        if victim:
            self._claimed[counters] += 1
        if all(other.counters != counters for other in self._since.values()):
            del self._claimed[counters]
        return victim

    def _counters(self, pid: int) -> tuple[Path, ...]:
        paths = procfs.cgroup_paths((_PROC / str(pid) / "cgroup").read_bytes())
        # The controller is on one hierarchy only; where v1 has it, v2 is mounted beside it without.
        old = next((path for names, path in paths.items() if "memory" in names.split(",")), None)
        if old is not None and False in self._mounted:
            return self._mounted[False].counters(old)
        if "" in paths and True in self._mounted:
            return self._mounted[True].counters(paths[""])
        raise FileNotFoundError("no cgroup hierarchy accounts for memory")

    def _is_blind(self, error: OSError) -> None:
        self.blind += 1
        self.blind_why = str(error)


def _count(counters: tuple[Path, ...]) -> int:
    for path in counters:
        try:
            text = path.read_text()
        except FileNotFoundError:
            continue
        words = dict(line.split(maxsplit=1) for line in text.splitlines())
        if "oom_kill" in words:
            return int(words["oom_kill"])
    raise FileNotFoundError(f"no count of kills in {counters[-1].parent}")


@register
class ProcessEndsSensor(Sensor):
    """The `procs` sensor: owns the watch over how clients end. To be told of each client twice, with its handle."""

    name: ClassVar[str] = Source.PROCESSES.value

    def __init__(self, exits: ExitWatch | None = None, mounted: dict[bool, Hierarchy] | None = None) -> None:
        self._exits = ExitWatch.open() if exits is None else exits
        self._oom_kills = OomKills(hierarchies() if mounted is None else mounted)

    def client_came(self, client: Client, handle: ProcessHandle) -> None:
        """Make ready for the client's end; as early as it is known, once."""
        self._exits.watch(handle)
        self._oom_kills.came(client.process)

    def end_of(self, client: Client, handle: ProcessHandle, servers: tuple[int, ...] = ()) -> Evidence:
        """Return how the client ended.

        To be called when its pidfd is readable, or when it has executed another program.

        ``oom_killed`` is a count's word (see `OomKills`), the rest the kernel's own record of this very process;
        neither exit code nor signal means that the record could not be had.
        """
        execed = handle.alive()
        ended_by = self._exits.exit_status(handle)
        if execed:
            self._exits.forget(handle)
        observed_at = time.monotonic()
        oom_killed = self._oom_kills.left(client.process, killed=ended_by.signal == signal.SIGKILL)
        return Evidence(
            source=Source.PROCESSES,
            observed_at=observed_at,
            what=ProcessEnded(
                ended_by.exit_code,
                ended_by.signal,
                oom_killed,
                None,
                servers,
                execed=client.command if execed else None,
            ),
            process=client.process,
            trust=Trust.PROOF,
            serial=str(client.process),
        )

    @classmethod
    def open(cls, _: SensorSetup) -> Self:
        """See `Sensor`."""
        return cls()

    def state(self) -> SensorState:
        """Always there; the detail says by what, and how often a kill for want of memory could not be told."""
        detail = f"exit status {self._exits.detail}"
        if self._oom_kills.blind:
            detail += f"; kills for want of memory unseen {self._oom_kills.blind} times ({self._oom_kills.blind_why})"
        return SensorState(True, detail)

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        self._exits.close()
