"""What clients get of one lane, gathered for `service.verdict`: waiting, handed over, turned away, servers lost."""

import asyncio
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from mpsguard.guard import daemon_log
from mpsguard.guard.lanes import service
from mpsguard.guard.lanes.service import Failures, NotServed, ServiceRecord
from mpsguard.guard.model import Notify, Server
from mpsguard.linux.files.log_tail import LogTail
from mpsguard.linux.identity import Credentials, is_root
from mpsguard.linux.nvidia import nvidia_gpus
from mpsguard.linux.processes import procfs

_ENDED: Final = 64
"""Ended servers that are remembered, until the control daemon has said how they ended."""

_CLIENTS: Final = 4096
"""Clients of one server that are remembered: a GPU has 60 at most."""

_LOOK: Final = 2.0
"""Seconds between two looks at what clients get of the lane."""

_WORDS: Final = 160
"""Characters of log lines in a reason."""

_LONG_AGO: Final = float("-inf")

_SERVES: Final = "ACTIVE"
_IN_FAULT: Final = "FAULT"
_STOPPED: Final = frozenset({"T", "t"})
_ENDS: Final = frozenset({None, "Z", "X"})

_ACCEPTED: Final = re.compile(r"Client \{PID: \d{1,9}, [^}]*\} connected", re.ASCII)
_REFUSED: Final = re.compile(r"Failed to accept client \{PID: (\d{1,9}), [^}]*\} with status (\d{1,9})", re.ASCII)

_NOT_ITS_FAULT: Final = frozenset({807, 808, 809})
"""Statuses (cuda.h) with which a server refuses that works: in a fault, at its limits of clients and connections."""


class _Given(msgspec.Struct, eq=False):
    """A client that a server was given."""

    user: int


class _Ended(msgspec.Struct):
    """A server that has ended."""

    clients: Mapping[int, _Given]
    age: float
    counted: bool = False


class ServiceAttempt:
    """A client's attempt to get a server."""

    def __init__(self, watch: "ServiceWatch", client: Credentials, began: float, counts: bool) -> None:
        self.client = client
        self.began = began
        self.counts = counts
        """Whether it is a CUDA client's: the daemon has other reasons to hang up on a debugger, or on a server."""
        self._watch = watch

    def handed_over(self) -> None:
        """Say that it has got a socket to a server: one can be started, and the daemon is at work."""
        self._watch.handed_over(self)

    def turned_away(self) -> None:
        """Say that the control daemon, which lives on, hung up on it, though it had done nothing to deserve it."""
        self._watch.turned_away(self)


class ServiceWatch:
    """Owns the service record of a lane. All in one event loop; times are of the monotonic clock."""

    def __init__(self, logs: Path, notice: Notify, prompt: Callable[[], None], *, multiuser: bool) -> None:
        """Create it; `begin` starts it.

        Args:
            logs: the directory of the daemons' logs.
            notice: takes the event ``server_lost``.
            prompt: has the control daemon asked which servers there are.
            multiuser: whether servers are the control daemon's user's, instead of their clients'.
        """
        self._logs = logs
        self._notice = notice
        self._prompt = prompt
        self._multiuser = multiuser
        self.record = ServiceRecord()
        self._waiting: dict[ServiceAttempt, None] = {}
        self._excused = 0.0
        """Until when there was a reason to wait: no daemon, or a fault."""
        self._on: dict[int, _Given] = {}
        """The clients that the present server has been given, by pid; some have just ended."""
        self._servers: dict[int, float] = {}
        """When each present server was first seen."""
        self._ended: dict[int, _Ended] = {}
        self._control = self._server = LogTail(logs / "control.log")
        self._exit = self._said = ""
        """The last that was said of a server's end, and by a server."""
        self._failed_at = float("-inf")
        """When a server was last said to have ended with another status than 0."""
        self._believed = True
        """Whether no stranger can write the logs. All processes of a lane write both by one FIFO (550.163, 580.159.04):
        without ``-M`` a server is its client's user's process, and that user could keep its descriptor of the FIFO."""

    def begin(self, *, adopted: bool = False) -> None:
        """Forget all but the clients that wait: another control daemon was started, or one was found (``adopted``)."""
        self.record = ServiceRecord()
        self._excused = time.monotonic()
        self._on, self._servers, self._ended = {}, {}, {}
        self._control = LogTail(self._logs / "control.log")
        self._server = LogTail(self._logs / "server.log")
        self._exit = self._said = ""
        self._believed = self._multiuser or not adopted

    # What happens to clients.

    @contextmanager
    def attempt(self, client: Credentials, began: float, *, counts: bool = True) -> Iterator[ServiceAttempt]:
        """Say that a client waits for a server, until it is handed over or turned away, or the body ends.

        Args:
            client: the client.
            began: since when it waits, on the monotonic clock.
            counts: see `ServiceAttempt`.
        """
        attempt = ServiceAttempt(self, client, began, counts)
        if client.uid and not self._multiuser and _strangers([client.user]):
            self._believed = False
        if counts:
            self._waiting[attempt] = None
        try:
            yield attempt
        finally:
            self._waiting.pop(attempt, None)

    def handed_over(self, attempt: ServiceAttempt) -> None:
        """See `ServiceAttempt`."""
        self._waiting.pop(attempt, None)
        self._hear()
        self.client_came(attempt.client.pid, attempt.client.user)
        self._change(turned_away=Failures(), handed_over=time.monotonic(), unanswered_since=None)
        if not self._servers:
            # It is to be held before it can end.
            self._prompt()

    def client_came(self, pid: int, user: int) -> None:
        """Say that a client is on the lane's server."""
        if len(self._on) < _CLIENTS:
            self._on[pid] = _Given(user)

    def client_left(self, pid: int) -> None:
        """Say that a client of the lane has ended. It counts for a while yet: its server's end may be told after it."""
        asyncio.get_running_loop().call_later(service.YOUNG, self._forget, pid, self._on.get(pid))

    def _forget(self, pid: int, client: _Given | None) -> None:
        if self._on.get(pid) is client:
            self._on.pop(pid, None)

    def turned_away(self, attempt: ServiceAttempt) -> None:
        """See `ServiceAttempt`."""
        self._waiting.pop(attempt, None)
        if not attempt.counts:
            return
        self._hear()
        client = attempt.client
        # A server that is not the client's user's is beyond the reach of that user.
        suspects = () if self._multiuser or client.uid == 0 else _strangers([client.user])
        by_itself = self._failed_at >= attempt.began and nvidia_gpus.open_to(client.uid, os.getegid())
        self._fails("turned_away", suspects, service.TURNED_AWAY, by_itself=by_itself)

    # What is seen of the daemons.

    def answered(self) -> None:
        """Say that the control daemon has answered, or hung up since another command line is connected."""
        self._change(unanswered_since=None)

    def asked(self) -> None:
        """Say that the control daemon is asked a question; until `answered`, it is not."""
        if self.record.unanswered_since is None:
            self._change(unanswered_since=time.monotonic())

    def look(self, servers: Iterable[Server], *, excused: bool = False) -> None:
        """Look at the servers of the last answer, without a question to any daemon.

        Args:
            servers: as they were then.
            excused: whether there is a reason for clients to wait.
        """
        now = time.monotonic()
        self._hear()
        states = {server.process.pid: server.state for server in servers}
        for pid, state in states.items():
            # The end of a server in a fault is a fault's, however young it is, and incidents tell of that.
            self._servers[pid] = _LONG_AGO if state == _IN_FAULT else self._servers.get(pid, now)
        if excused or _IN_FAULT in states.values():
            self._excused = now
        owners = {} if self._multiuser else self._owners(states)
        stopped = [pid for pid in states if procfs.state(pid) in _STOPPED]
        since = self.record.stopped_since
        self._change(
            stopped_since=None if not stopped else now if since is None else since,
            stopped_by=frozenset(_strangers(owners[pid] for pid in stopped if pid in owners)),
            **self._waits(states, owners, now),
        )
        old = any(now - self._servers[pid] >= service.YOUNG for pid, state in states.items() if state == _SERVES)
        if self._on and not stopped and old:
            self._change(lost=Failures(), served=now)

    def believes_logs(self) -> bool:
        """Whether no stranger can write the logs."""
        return self._believed

    def server_gone(self, pid: int) -> None:
        """Say that a server has ended, once the kernel has told all of this pass of the event loop."""
        asyncio.get_running_loop().call_soon(self.server_ended, pid)

    def server_ended(self, pid: int) -> None:
        """Say that a server has ended. Its clients are looked at now: one that lives has lost it."""
        self._end(pid, None)
        self._change(stopped_since=None)

    def holding(self) -> tuple[str, ...]:
        """Return the clients of the server that have not ended, stopped ones first, in words."""
        alive = {pid: state for pid in self._on if (state := procfs.state(pid)) not in _ENDS}
        ordered = sorted(alive, key=lambda pid: (alive[pid] not in _STOPPED, pid))
        return tuple(f"{pid} (stopped)" if alive[pid] in _STOPPED else str(pid) for pid in ordered)

    # What follows.

    def expects(self) -> bool:
        """Whether a question to the control daemon may soon bring another answer."""
        record = self.record
        fails = record.turned_away.count or record.lost.count or record.refused.count
        return bool(self._waiting or record.unanswered_since is not None or fails or (self._on and not self._servers))

    async def attend(self, judge: Callable[[], None]) -> None:
        """Have the lane judged now and then, for ever, and its control daemon asked if there may be news."""
        while True:
            await asyncio.sleep(_LOOK)
            judge()
            if self.expects():
                self._prompt()

    def verdict(self) -> NotServed | None:
        """Return that clients are not served, if so."""
        return service.verdict(self.record, time.monotonic())

    def _owners(self, pids: Iterable[int]) -> dict[int, int]:
        """Return the users of servers that live, which without ``-M`` may stop them."""
        found = {}
        for pid in pids:
            with suppress(ProcessLookupError):
                found[pid] = procfs.uid(pid)[0]
        return found

    def _waits(self, states: Mapping[int, str], owners: Mapping[int, int], now: float) -> dict[str, Any]:
        """Return since when a client waits, but for another user's server to leave, and the users that may cause it.

        Of those that have waited for too long, all.
        """
        serving = {uid for pid, uid in owners.items() if states[pid] == _SERVES}
        waits = [(max(each.began, self._excused), each) for each in self._waiting if not serving - {each.client.uid}]
        since = min((began for began, _ in waits), default=None)
        if since is None or self._multiuser:
            return {"waiting_since": since, "waiting_by": frozenset()}
        too_long = [each for began, each in waits if began <= max(since, now - service.WAITED)]
        by = [_strangers((each.client.uid, *owners.values())) for each in too_long]
        return {"waiting_since": since, "waiting_by": frozenset.intersection(*map(frozenset, by))}

    def _hear(self) -> None:
        """Read what the control daemon says of servers' ends, and what servers say of clients.

        The daemon logs commands too, but they have no line breaks (`ui_sessions`): no user makes up lines by them.
        """
        for text in self._server.read():
            line = daemon_log.parse_line(text)
            said = (text if line is None else line.text).strip()
            self._said = said or self._said
            if not self._believed:
                continue
            if _ACCEPTED.match(said):
                self._change(refused=Failures())
            elif (found := _REFUSED.match(said)) and int(found[2]) not in _NOT_ITS_FAULT and int(found[1]) in self._on:
                self._fails("refused", _strangers([self._on[int(found[1])].user]), service.REFUSED)
        for text in self._control.read():
            line = daemon_log.parse_line(text)
            end = None if line is None else daemon_log.server_end(line)
            if line is not None and end is not None:
                self._exit = line.text
                self._failed_at = time.monotonic() if end[1] else self._failed_at
                if self._believed:
                    self._end(*end)

    def _end(self, pid: int, status: int | None) -> None:
        """Take in that a server ended; with ``status`` 0 in order or by a signal (550.163), with None somehow."""
        ended = self._ended.get(pid)
        if ended is None:
            if pid not in self._servers and (self._servers or not self._on):
                # One that never came up: its clients are turned away.
                return
            now = time.monotonic()
            ended = self._ended[pid] = _Ended(self._on, now - self._servers.pop(pid, now))
            self._on = {}
            if len(self._ended) > _ENDED:
                del self._ended[next(iter(self._ended))]
        if ended.counted or ended.age >= service.YOUNG or not ended.clients:
            return
        # One that left for another user's has no clients any more.
        if status or (status is None and any(procfs.state(each) not in _ENDS for each in ended.clients)):
            ended.counted = True
            users = sorted({client.user for client in ended.clients.values()})
            self._fails("lost", _strangers(users), service.LOST)
            told: dict[str, Any] = {"server": pid, "clients": len(ended.clients), "seconds": round(ended.age, 1)}
            self._notice("server_lost", {**told, "user": users[0]} if len(users) == 1 else told)

    def _fails(self, kind: str, suspects: Collection[int], weight: int, *, by_itself: bool = False) -> None:
        failures: Failures = getattr(self.record, kind)
        words = procfs.printable(": ".join(each for each in (self._exit, self._said) if each))[:_WORDS]
        more = failures.with_one(suspects, weight, time.monotonic(), words or failures.words, by_itself=by_itself)
        self._change(**{kind: more})

    def _change(self, **changes: Any) -> None:
        self.record = msgspec.structs.replace(self.record, **changes)


def _strangers(users: Iterable[int]) -> tuple[int, ...]:
    """Return those that are strangers to the guard."""
    return tuple(user for user in users if not is_root(user) and user != os.geteuid())
