"""The servers of one lane: which there are, that they live, and what state the control daemon reports for each."""

import asyncio
import re
from collections.abc import Awaitable, Callable

from mpsguard.guard.lanes import lane_state
from mpsguard.guard.lanes.command import CommandReply
from mpsguard.guard.lanes.server_log import LogHint
from mpsguard.guard.model import Server
from mpsguard.linux.identity import PID_LIMIT
from mpsguard.linux.processes.process import ProcessHandle
from mpsguard.linux.processes.stat_reader import StatReader

_PID = re.compile(r"^\s*([1-9][0-9]{0,9})\s*$", re.ASCII)
_UNKNOWN_COMMAND = 'Unknown command "get_server_status"'

_MOST_IN_FAULT = 64
"""A lane has one server at a time; a user that can write to its log can make up others, and push out the oldest."""

Ask = Callable[[str], Awaitable[CommandReply]]


def pids(reply: CommandReply) -> list[int]:
    """Return the pids that a list has; a line that is none, or a pid that no process can have, costs itself alone."""
    found = (int(match[1]) for match in map(_PID.match, reply.lines) if match)
    return [pid for pid in found if pid < PID_LIMIT]


class Servers:
    """Owns a handle on every server of the lane; ``ended`` is called with the pid of each that has ended."""

    def __init__(self, ask: Ask, ended: Callable[[int], None], stats: StatReader) -> None:
        self._ask = ask
        self._ended = ended
        self._stats = stats
        self._handles: dict[int, ProcessHandle] = {}
        self._in_fault: dict[int, None] = {}
        """Servers in fault by their log; only believed where the driver has no get_server_status."""
        self._status_known = True

    def close(self) -> None:
        """Give all handles back."""
        for pid in list(self._handles):
            self._drop(pid)
        self._in_fault.clear()
        self._status_known = True

    def note(self, pid: int, hint: LogHint) -> None:
        """Take in what server.log says of a server."""
        if hint is LogHint.FAULT_BEGINS:
            self._in_fault[pid] = None
            if len(self._in_fault) > _MOST_IN_FAULT:
                del self._in_fault[next(iter(self._in_fault))]
        else:
            self._in_fault.pop(pid, None)

    async def observe(self) -> tuple[Server, ...]:
        """The servers and their states, asked now. Raises what asking raises."""
        for pid in [pid for pid, handle in self._handles.items() if not handle.alive()]:
            self._gone(pid)
        if not self._handles:
            await self._list()
        seen = [await self._state(pid) for pid in list(self._handles)]
        if None in seen:
            # The control daemon no longer knows one of them: see which there are now.
            await self._list()
            seen = [await self._state(pid) for pid in list(self._handles)]
        return tuple(server for server in seen if server is not None)

    async def clients(self) -> dict[int, int]:
        """Client pid to server pid, as the control daemon lists them now."""
        await self._list()
        found: dict[int, int] = {}
        for pid in list(self._handles):
            reply = await self._ask(f"get_client_list {pid}")
            found.update(dict.fromkeys(pids(reply), pid))
        return found

    async def _list(self) -> None:
        reply = await self._ask("get_server_list")
        listed = set(pids(reply))
        for pid in set(self._handles) - listed:
            self._gone(pid)
        for pid in listed - set(self._handles):
            try:
                handle = await self._stats.hold(pid)
            except (ProcessLookupError, TimeoutError):
                continue
            if pid in self._handles:
                handle.close()
                continue
            self._handles[pid] = handle
            asyncio.get_running_loop().add_reader(handle.fileno(), self._gone, pid)

    async def _state(self, pid: int) -> Server | None:
        handle = self._handles.get(pid)
        if handle is None:
            return None
        word = "FAULT" if pid in self._in_fault else "ACTIVE"
        if self._status_known:
            reply = await self._ask(f"get_server_status {pid}")
            said = [line.strip() for line in reply.lines] or [""]
            if any(line.startswith(_UNKNOWN_COMMAND) for line in said):
                self._status_known = False
            elif any("not found" in line for line in said):
                return None
            else:
                word = next((line for line in said if line in lane_state.WORDS), said[0])
        return Server(handle.key, word)

    def _gone(self, pid: int) -> None:
        self._drop(pid)
        self._ended(pid)

    def _drop(self, pid: int) -> None:
        handle = self._handles.pop(pid, None)
        self._in_fault.pop(pid, None)
        if handle is not None:
            asyncio.get_running_loop().remove_reader(handle.fileno())
            handle.close()
