"""A vault as a process of its own, a good client of it, and attackers of other users, as real processes."""

import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mpsguard.client import Chunk, Session
from mpsguard.linux.processes import procfs
from tests.harness.waiting import PATIENCE, wait_for
from tests.hostile import vault_attacks
from tests.hostile.stalled_files import StalledFiles
from tests.hostile.vault_attacks import Stranger
from tests.integration.vault.running import REPOSITORY, VaultProcess
from tests.open_files import open_files

NOBODY = 65534


@contextmanager
def attack(
    path: str, what: Callable[[Stranger], None], uid: int = NOBODY, stalled: StalledFiles | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Have a process of another user do ``what`` to the vault at ``path``.

    The body begins when that is done, and the process is killed after it. AssertionError if it could not be done.
    ``stalled``: unmounted at the end, since a process that waits for a page of it cannot be killed.
    """
    file = [] if stalled is None else [str(stalled.file)]
    command = [sys.executable, "-m", vault_attacks.__name__, what.__name__, path, str(uid), *file]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            # It may neither say anything nor end.
            said = select.select([process.stdout], [], [], vault_attacks.DEADLINE + PATIENCE)[0]
            assert said, "the attack does not come to its end"
            assert process.stdout.readline() == b"done\n", "the attack could not be made"
            yield process
        finally:
            if stalled is not None:
                stalled.close()
            process.kill()


class Neighbourhood:
    """A vault that every user can reach, and what its processes have open."""

    def __init__(self) -> None:
        self.vault = VaultProcess()

    @contextmanager
    def open(self) -> Iterator["Neighbourhood"]:
        with self.vault:
            self.vault.root.chmod(0o755)
            wait_for("the vault's socket", lambda: os.path.exists(self.vault.socket))
            yield self

    @property
    def path(self) -> str:
        return self.vault.socket

    def processes(self) -> list[int]:
        """The vault and all that it has started and that still lives, holders apart."""
        assert self.vault.process is not None
        found = [self.vault.process.pid]
        for pid in found:
            with suppress(FileNotFoundError, ProcessLookupError):
                for task in os.listdir(f"/proc/{pid}/task"):
                    with open(f"/proc/{pid}/task/{task}/children", encoding="ascii") as children:
                        found += [int(child) for child in children.read().split()]
        return found

    def porters(self) -> set[int]:
        """The processes that own users' connections."""
        vault, *started = self.processes()
        found = set()
        for pid in started:
            with suppress(FileNotFoundError, ProcessLookupError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                # Their children have the same command.
                if b"mpsguard.vault.server.porter" in command and procfs.parent(pid) == vault:
                    found.add(pid)
        return found

    def foreign(self) -> list[str]:
        """What the vault's processes have open of a stranger's: TCP sockets and memory."""
        tcp = self._tcp()
        links = [link for pid in self.processes() for link in open_files(pid)]
        return [link for link in links if link in tcp or "stranger" in link]

    def tasks(self) -> int:
        """Processes and threads."""
        found = 0
        for pid in self.processes():
            with suppress(FileNotFoundError):
                found += len(os.listdir(f"/proc/{pid}/task"))
        return found

    def descriptors(self) -> int:
        return sum(len(open_files(pid)) for pid in self.processes())

    @staticmethod
    def _tcp() -> set[str]:
        found = set()
        for table in ("/proc/net/tcp", "/proc/net/tcp6"):
            with open(table, encoding="ascii") as lines:
                found |= {f"socket:[{line.split()[9]}]" for line in list(lines)[1:]}
        return found - {"socket:[0]"}

    @contextmanager
    def good_client(self) -> Iterator[Callable[[int], None]]:
        """A client of our own that works all the time. The function waits until it was answered that often again."""
        answered = 0
        over = threading.Event()
        trouble: list[BaseException] = []

        def work() -> None:
            nonlocal answered
            fd = os.memfd_create("good", os.MFD_CLOEXEC)
            os.ftruncate(fd, 4096)
            try:
                with Session("good", socket=self.path, deadline=PATIENCE) as session:
                    session.create("r", [Chunk(fd, 4096)])
                    while not over.is_set():
                        session.describe("r")
                        answered += 1
                        time.sleep(0.001)
            except BaseException as error:
                trouble.append(error)
            finally:
                os.close(fd)

        def is_answered(times: int) -> None:
            due = answered + times
            wait_for("answers to a good client", lambda: trouble or answered >= due)
            assert not trouble

        thread = threading.Thread(target=work)
        thread.start()
        try:
            is_answered(1)
            yield is_answered
        finally:
            over.set()
            thread.join(PATIENCE)
