"""What a running guard holds, and where it makes names, against the list of what strangers may open."""

import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import psutil
import pytest

from mpsguard.client import Chunk, LeaseRole, Session
from tests.hostile import exposed_objects
from tests.hostile.attacker import attack
from tests.integration.guarded import Guarded

pytestmark = [
    pytest.mark.slow(seconds=10, reason="a real guard, with a class, standbys and a session"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root"),
]

OPENED = """
def opened(path):
    # Not waiting: of a FIFO both ends.
    flags = os.O_RDONLY | os.O_DIRECTORY if os.path.isdir(path) else os.O_RDWR | os.O_NONBLOCK
    try:
        os.close(os.open(path, flags))
    except OSError:
        return False
    return True

tell("opened", paths=[path for path in sys.stdin.read().splitlines() if opened(path)])
"""
"""It opens what it can: files and FIFOs to write, directories to list."""

DOMAIN: Final = """
standby = true
multiuser = true
[[domain.class]]
name = "batch"
uids = [0]
"""
REGION: Final = "a-region-of-a-client"
MEMORY: Final = "/memfd:"


def opened(guarded: Guarded, paths: Iterable[str]) -> set[str]:
    """Those of the paths that a stranger can open."""
    names = guarded.root / "names"
    names.write_text("\n".join(sorted(paths)))
    with names.open() as file:
        return set(attack(guarded, OPENED, stdin=file).expect("opened")["paths"])


def held(pid: int) -> set[str]:
    """What a process has open that can have a lock: files, FIFOs and directories, as /proc shows them."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            mode, link = fd.stat().st_mode, str(fd.readlink())
        except FileNotFoundError:
            continue
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or (stat.S_ISFIFO(mode) and link.startswith("/")):
            found.add(link)
    return found


def processes(pid: int, lanes: Path) -> list[int]:
    """A guard's own processes: without the vendor's, which have a lane's directory in their environment."""
    of_lanes = str(lanes)
    return [
        each.pid
        for each in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True))
        if not each.environ().get("CUDA_MPS_PIPE_DIRECTORY", "").startswith(of_lanes)
    ]


def names_below(*tops: Path) -> set[str]:
    """All directories, files and FIFOs, the directories themselves among them."""
    found = {str(top) for top in tops}
    for top in tops:
        found |= {str(path) for path in top.rglob("*") if not path.is_socket() and not path.is_symlink()}
    return found


def test_no_stranger_can_open_what_the_guard_holds_but_for_the_list() -> None:
    with Guarded(domain=DOMAIN) as guarded:
        pid = guarded.start()
        guarded.client().expect("started")
        region = os.memfd_create(REGION)
        os.ftruncate(region, 1 << 20)
        address = str(guarded.run_directory / "vault.sock")
        with (
            Session("held", socket=address, keep=None, deadline=30) as writer,
            Session("held", role=LeaseRole.STANDBY, socket=address, deadline=30),
        ):
            writer.create("weights", [Chunk(region, 1 << 20)], va=1 << 40)
            writer.publish(b"state")
            found = set().union(*(held(each) for each in processes(pid, guarded.run_directory / "lanes")))
            # Any process that has a descriptor of memory may have given it away.
            memory = {link for link in found if link.startswith(MEMORY)}
            # The kernel's own trees are not written to, and the log is this test's.
            files = {
                link for link in found - memory if not link.startswith(("/proc", "/sys", str(guarded.process.log)))
            }
            made = names_below(guarded.public, guarded.run_directory, guarded.root / "state", guarded.root / "log")
            exposed = {link for link in memory if REGION not in link} | opened(guarded, files | made)
        assert memory, "a session has descriptors"
        assert str(guarded.public / "control_lock") in files, "a guard holds its locks"
        assert {link for link in exposed if exposed_objects.reason(link) is None} == set()
        assert guarded.stop() == 0
