"""The vendor's own command line, as a user runs it: `echo COMMAND | nvidia-cuda-mps-control`."""

import os
import subprocess
from dataclasses import dataclass

from tests.bench.core.client import client_environment
from tests.bench.core.errors import SuiteError


@dataclass(frozen=True)
class Reply:
    """What the command line printed and how it exited."""

    lines: tuple[str, ...]
    exit_status: int


@dataclass(frozen=True)
class ControlUi:
    """`nvidia-cuda-mps-control` against one pipe directory."""

    binary: str
    pipe_directory: os.PathLike[str]

    def ask(self, command: str, timeout: float = 20.0) -> Reply:
        """Run one command; SuiteError if there is no end to it within `timeout` seconds."""
        try:
            done = subprocess.run(
                [self.binary],
                input=command + "\n",
                env=client_environment(self.pipe_directory),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SuiteError(f"{command!r} on {self.pipe_directory} was not answered within {timeout:g} s") from None
        return Reply(tuple(done.stdout.splitlines()), done.returncode)

    def servers(self) -> list[int]:
        """Pids of the MPS servers."""
        return _pids(self.ask("get_server_list"))

    def clients(self, server: int) -> list[int]:
        """Pids of the clients of one server."""
        return _pids(self.ask(f"get_client_list {server}"))

    def all_clients(self) -> set[int]:
        """Pids of the clients of every server: a process in here runs under MPS."""
        return {pid for server in self.servers() for pid in self.clients(server)}


def _pids(reply: Reply) -> list[int]:
    return [int(line) for line in reply.lines if line.strip().isdigit()]
