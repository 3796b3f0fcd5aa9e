"""The vendor's control daemon and the simulated one of its branch, side by side, told the same and asked the same.

Both have the simulated server and simulated clients behind them: the vendor's own server needs a GPU. Pids are replaced
by names in what is told and what is heard, also where a number only happens to be one of them: it is one on both sides.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from fault_injection.sim.stack import BIN, SimulatedStack
from tests.harness.waiting import wait_for
from tests.unit.sim import raw
from tests.vendor import VendorMps

_PROGRAM = "nvidia-cuda-mps-control"
_LARGEST = 1 << 17


class Answer(NamedTuple):
    """What a session heard: every message, then the exit status."""

    lines: tuple[str, ...]
    status: int


class Side(SimulatedStack):
    """One of the two: a daemon with a server of ``owner`` and clients."""

    def __init__(self, root: Path, control: Path) -> None:
        super().__init__(root)
        self.control = control
        self.names: dict[str, str] = {}
        """Pids by the names that stand for them."""
        self.others: Mapping[str, str] = {}
        """The other side's: a limit of 512M that is heard of both is no pid of either, and a name on both."""
        root.chmod(0o755)
        for directory in (self.pipes, self.logs):
            directory.chmod(0o777)

    @property
    def environment(self) -> dict[str, str]:
        """With the simulated server as the one in PATH."""
        return {**super().environment, "PATH": f"{self.pipes.parent / 'servers'}:{os.environ['PATH']}"}

    def start(self) -> Self:
        """Start the daemon; it listens when this returns."""
        servers = self.pipes.parent / "servers"
        servers.mkdir()
        (servers / "nvidia-cuda-mps-server").symlink_to(BIN / "nvidia-cuda-mps-server")
        subprocess.run([self.control, "-d"], env=self.environment, stdin=subprocess.DEVNULL, check=True, timeout=20)
        self._daemons.append(self.daemon_pid())
        return self

    def serve(self, owner: int, clients: int) -> None:
        """Have a server of a user, and clients of root at it."""
        self.ask(f"start_server -uid {owner}")
        wait_for("a server", lambda: self.ask("get_server_list").lines)
        pid = self.ask("get_server_list").lines[0]
        wait_for("that it has registered", lambda: self.ask(f"get_active_thread_percentage {pid}").lines == ("100.0",))
        self.names = {"SERVER": pid}
        for number in range(clients):
            self.names[f"CLIENT{number}"] = str(self.busy_client().pid)

    def ask(self, *commands: str, uid: int = 0, public: bool = False) -> Answer:
        """Give commands in one session: root's to the privileged socket, unless told otherwise."""
        name = "control" if uid or public else "control_privileged"
        with raw.connect(self.pipes / name) as session:
            session.recv(64)
            raw.identify(session, 4, uid=uid)
            for command in commands:
                text = f"{self._with_pids(command)}\n".encode(errors="surrogateescape") + b"\0"
                session.send(struct.pack("q", len(text)))
                session.send(text)
            session.send(struct.pack("q", 0))
            return self._hear(session)

    def front(self, given: bytes) -> tuple[bytes, bytes, int]:
        """Give a text to the command line of its own; output, errors, exit status."""
        ended = subprocess.run(
            [self.control], input=given, env=self.environment, capture_output=True, timeout=20, check=False
        )
        return ended.stdout, ended.stderr, ended.returncode

    def is_gone(self) -> bool:
        """Whether the daemon has ended."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.pipes / "control")) != 0

    def _hear(self, session: socket.socket) -> Answer:
        lines: list[str] = []
        while True:
            data = session.recv(_LARGEST)
            kind, text = struct.unpack_from("i", data)[0], data[4:]
            if kind == 1:
                return Answer(tuple(lines), struct.unpack("i", text)[0])
            lines.append(self._with_names(text.decode(errors="surrogateescape")))

    def _with_pids(self, text: str) -> str:
        for name, pid in self.names.items():
            text = text.replace(f"{name}+2^32", str(int(pid) + (1 << 32))).replace(name, pid)
        return text

    def _with_names(self, text: str) -> str:
        for name, pid in (*self.names.items(), *self.others.items()):
            # A column of a table keeps its width.
            text = re.sub(
                rf"(?<!\d){pid}(?!\d)( {{2,}})?",
                lambda found, name=name: name.ljust(len(found[0])) if found[1] else name,  # type: ignore[misc]
                text,
            )
        return text


class Pair(ExitStack):
    """Both sides; ends all of their processes."""

    def __init__(self, mps: VendorMps, *, owner: int | None = None, clients: int = 0) -> None:
        """``owner``: the user of a server that both have; None: they have none."""
        super().__init__()
        self.properties: list[tuple[str, object]] = []
        """Of the test: how many commands both have answered alike, without those that set up and look."""
        # Short: a socket's path has at most 107 bytes.
        root = Path(tempfile.mkdtemp(prefix="ls-"))
        root.chmod(0o755)
        self.callback(shutil.rmtree, root, ignore_errors=True)
        self.vendors = Side(root / "v", mps.control)
        self.ours = Side(root / "s", BIN / _PROGRAM)
        self.ours.script.driver(mps.branch)
        for side in (self.vendors, self.ours):
            self.callback(side.stop)
            side.start()
            if owner is not None:
                side.serve(owner, clients)
        self.vendors.others, self.ours.others = self.ours.names, self.vendors.names

    def means_the_same(self, command: str) -> bool:
        """Whether no number of a command happens to be a pid of one side, which it is not of the other."""
        pids = {*self.vendors.names.values(), *self.ours.names.values()}
        return pids.isdisjoint(re.findall(r"\d+", command))

    def all_have(self, what: str, look: Callable[[Side], object]) -> None:
        """Wait until both have it."""
        wait_for(what, lambda: look(self.vendors) and look(self.ours))

    def differences(
        self, command: str, before: Sequence[str] = (), after: Sequence[str] = (), *, uid: int = 0, public: bool = False
    ) -> list[str]:
        """Give both a command, in one session with others, and return their answers where these differ."""
        commands = (*before, command, *after)
        vendors, ours = (side.ask(*commands, uid=uid, public=public) for side in (self.vendors, self.ours))
        return [] if vendors == ours else [f"{command!r} as {uid}:\n   vendor {vendors}\n     ours {ours}"]
