"""The vault under a real systemd: its descriptor store keeps the regions through SIGKILL, restart and upgrade."""

import itertools
import sys
from collections.abc import Iterator

import pytest

from tests.harness.waiting import PATIENCE
from tests.integration.systemd.booted import BootedSystemd
from tests.integration.systemd.installed import REPOSITORY

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=30, reason="boots systemd")]

UNIT = "vault-under-test.service"
RUN = "/run/vault-under-test"
REGIONS, CHUNKS = 3, 300
STORED = 2 + REGIONS
"""Bundles in the store: the manifest, the state buffer, and one for each region, however many chunks it has."""

SERVICE = f"""
[Unit]
StartLimitIntervalSec=0
[Service]
Type=notify
NotifyAccess=main
WorkingDirectory={REPOSITORY}
ExecStart={sys.executable} -m mpsguard.guard.daemon.vault_service {RUN}
Restart=always
RestartSec=50ms

KillMode=process
FileDescriptorStoreMax={{store}}
LimitNOFILE=65536
Environment=MPSGUARD_VAULT_SIMULATED=1 GENERATION_OF_THE_PROGRAM={{version}}
"""

WRITER = f"""
import hashlib, os, sys, time
from mpsguard.client import Chunk, Session
session = Session("work", socket="{RUN}/vault.sock", deadline=60, keep=None)
for region in range({REGIONS}):
    chunks = []
    for index in range({CHUNKS}):
        fd = os.memfd_create("chunk")
        os.write(fd, hashlib.shake_128(b"%d-%d" % (region, index)).digest(4096))
        chunks.append(Chunk(fd, 4096))
    session.create(f"r{{region}}", chunks, metadata=b"m%d" % region)
    for chunk in chunks:
        os.close(chunk.fd)
session.publish(b"first")
print("made", flush=True)
number = 0
while True:
    number += 1
    session.publish(b"%d" % number)
    time.sleep(0.001)
"""

CHECK = f"""
import hashlib, os, sys
from mpsguard.client import LeaseRole, Session
with Session("work", socket="{RUN}/vault.sock", role=LeaseRole.READER, deadline=60) as session:
    assert list(session.names()) == [f"r{{n}}" for n in range({REGIONS})], list(session.names())
    for number in range({REGIONS}):
        with session.open(f"r{{number}}") as region:
            assert len(region.fds) == {CHUNKS}
            assert region.metadata == b"m%d" % number
            for index, fd in enumerate(region.fds):
                assert os.pread(fd, 4096, 0) == hashlib.shake_128(b"%d-%d" % (number, index)).digest(4096)
    first = session.latest()
    assert first is not None and first.generation == 1 and session.generation == int(sys.argv[1]), first
    print(first.sequence)
"""


_numbers = itertools.count()


class Vault:
    def __init__(self, machine: BootedSystemd) -> None:
        self.machine = machine
        self.writer = ""

    def install(self, *, store: int = 64, version: int = 1) -> None:
        self.machine.write(f"/etc/systemd/system/{UNIT}", SERVICE.format(store=store, version=version))
        self.machine.systemctl("daemon-reload")

    def pid(self) -> int:
        return int(self.machine.property(UNIT, "MainPID"))

    def stored(self) -> int:
        return int(self.machine.property(UNIT, "NFileDescriptorStore"))

    def holders(self) -> list[str]:
        done = self.machine.run("pgrep", "-f", "mpsguard.vault.server.fd_storage.holder_process", check=False)
        return done.stdout.split()

    def wait_for_another(self, old: int) -> int:
        def ready() -> int:
            pid = self.pid()
            return pid if pid not in (0, old) and self.machine.property(UNIT, "ActiveState") == "active" else 0

        return self.machine.wait_for(ready, PATIENCE, f"a vault in the place of {old}")

    def start_writer(self) -> None:
        # A name of its own for each: the journal remembers what the one before has said.
        self.writer = f"vault-writer-{next(_numbers)}.service"
        self.machine.write("/run/vault-writer.py", WRITER)
        self.machine.run(
            *("systemd-run", "--quiet", f"--unit={self.writer}", f"--property=WorkingDirectory={REPOSITORY}"),
            *(f"--setenv=PYTHONPATH={REPOSITORY}", "--", sys.executable, "/run/vault-writer.py"),
        )
        self.machine.wait_for(lambda: "made" in self.machine.journal(self.writer).splitlines(), PATIENCE, "the regions")

    def check(self, generation: int = 1) -> int:
        """Verify every byte from another process; the sequence number of the forward state."""
        command = f"cd {REPOSITORY} && exec {sys.executable} - {generation}"
        return int(self.machine.run("sh", "-c", command, stdin=CHECK, deadline=60).stdout)


@pytest.fixture
def vault(machine: BootedSystemd) -> Iterator[Vault]:
    running = Vault(machine)
    running.install()
    machine.systemctl("start", UNIT)
    yield running
    machine.systemctl("stop", UNIT, *filter(None, [running.writer]), check=False)
    machine.systemctl("reset-failed", check=False)
    for pid in running.holders():
        machine.run("kill", "-9", pid, check=False)
    machine.run("rm", "-rf", RUN)


def test_regions_outlive_sigkill_restart_and_upgrade(vault: Vault) -> None:
    vault.start_writer()
    assert vault.stored() == STORED
    assert vault.holders() == []
    writer = vault.machine.property(vault.writer, "MainPID")
    seen = vault.check()
    for _ in range(3):
        old = vault.pid()
        vault.machine.systemctl("kill", "--kill-whom=main", "--signal=SIGKILL", UNIT)
        vault.wait_for_another(old)
        now = vault.check()
        assert now > seen
        seen = now
        assert vault.stored() == STORED
    old = vault.pid()
    vault.machine.systemctl("restart", UNIT)
    vault.wait_for_another(old)
    assert vault.check() > seen
    assert (vault.stored(), vault.holders()) == (STORED, [])
    # Another version of the program, as the package manager would bring it.
    vault.install(version=2)
    vault.machine.systemctl("restart", UNIT)
    assert vault.check() > seen
    assert (vault.stored(), vault.holders()) == (STORED, [])
    assert vault.machine.property(vault.writer, "MainPID") == writer


def test_stop_leaves_everything_to_a_holder_and_start_takes_it_back(vault: Vault) -> None:
    vault.start_writer()
    seen = vault.check()
    vault.machine.systemctl("stop", UNIT)
    assert len(vault.holders()) == 1
    vault.machine.systemctl("start", UNIT)
    assert vault.check() > seen
    assert (vault.stored(), vault.holders()) == (STORED, [])


def test_a_dead_writers_regions_are_there_after_a_restart(vault: Vault) -> None:
    vault.start_writer()
    vault.machine.systemctl("kill", "--signal=SIGKILL", vault.writer)
    old = vault.pid()
    vault.machine.systemctl("kill", "--kill-whom=main", "--signal=SIGKILL", UNIT)
    vault.wait_for_another(old)
    vault.check(generation=2)


def test_what_the_store_has_no_room_for_is_refused(vault: Vault) -> None:
    vault.machine.systemctl("stop", UNIT)
    vault.install(store=3)
    vault.machine.systemctl("start", UNIT)
    program = f"""
import os
from mpsguard import client
session = client.Session("work", socket="{RUN}/vault.sock", keep=0.0)
fd = os.memfd_create("x")
os.ftruncate(fd, 4096)
session.create("fits", [client.Chunk(fd, 4096)])
try:
    session.create("too-much", [client.Chunk(fd, 4096)])
except client.UnavailableError:
    print(list(session.names()))
"""
    command = f"cd {REPOSITORY} && exec {sys.executable} -"
    assert vault.machine.run("sh", "-c", command, stdin=program).stdout == "['fits']\n"


def test_without_a_store_a_holder_keeps_the_regions(vault: Vault) -> None:
    vault.machine.systemctl("stop", UNIT)
    vault.install(store=0)
    vault.machine.systemctl("start", UNIT)
    vault.start_writer()
    assert vault.stored() == 0
    assert len(vault.holders()) == 1
    seen = vault.check()
    old = vault.pid()
    vault.machine.systemctl("kill", "--kill-whom=main", "--signal=SIGKILL", UNIT)
    vault.wait_for_another(old)
    assert vault.check() > seen
