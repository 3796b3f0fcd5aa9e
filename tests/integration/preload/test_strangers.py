"""Other users at the socket of a program under the preload: they get nothing, and hold nothing up."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from mpsguard.images.snapshot.program import PreloadedProgram
from mpsguard.linux.sockets import seqpacket
from mpsguard.preload.library import PreloadSettings
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.preload.bench import SECONDS, Bench
from tests.integration.preload.test_ipc import STRANGER, Exporter, ends_well, exporting, start
from tests.integration.preload.test_snapshot import ASKING, Target, reachable, target

pytestmark = [
    pytest.mark.slow(seconds=30, reason="compiles the preload with sanitizers"),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
]

COUNT = 3
LINGERING = """
import os, signal, socket, struct, sys
from tests.hostile.lingering import lingering
address, count = bytes.fromhex(sys.argv[1]), int(sys.argv[2])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
kept, refused = [], 0
for _ in range(count):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.connect(address)
    trap, other = lingering()
    kept += [sock, other]
    with trap:
        try:
            socket.send_fds(sock, [bytes(16)], [trap.fileno()])
        except (PermissionError, BrokenPipeError):
            refused += 1
            # Its last copy is closed here: the attack is over.
            trap.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
print(refused, flush=True)
signal.pause()
"""
"""Another user's, with an address and a number of connections: each sends a socket that lingers for an hour."""
ROOTS = {
    "of the machine": (),
    "without the right to read others": ("setpriv", "--bounding-set", "-sys_ptrace"),
    "of a container": ("unshare", "--pid", "--fork"),
}
"""Commands that make root another root."""
WITH_HIDEPID = f"""
mount -t proc -o hidepid="$0" proc /proc
exec setpriv --reuid {STRANGER} --regid {STRANGER} --clear-groups "$@"
"""


def address_of(exporter: Exporter) -> bytes:
    return b"\0mpsguard-ipc-" + bytes.fromhex(exporter.large)[8:24].hex().encode()


@contextmanager
def attacked(exporter: Exporter) -> Iterator[int]:
    """Yield how many of the sockets the kernel refused to pass. They are all sent before the exporter can look."""
    exporter.process.send_signal(signal.SIGSTOP)
    process = subprocess.Popen(
        [sys.executable, "-c", LINGERING, address_of(exporter).hex(), str(COUNT)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        refused = int(process.stdout.readline())
        exporter.process.send_signal(signal.SIGCONT)
        yield refused
    finally:
        process.kill()
        process.communicate()


def test_a_socket_that_lingers_does_not_stop_the_thread(plain: Bench) -> None:
    with exporting(plain) as exporter, attacked(exporter) as refused:
        if seqpacket.kernel_refuses_descriptors():
            assert refused == COUNT
        ends_well(start(plain, "ipc_leaver", PreloadSettings()), exporter.large)


@pytest.mark.parametrize("build", ["plain", "sanitized"])
def test_it_does_not_where_the_kernel_passes_descriptors_on(build: str, request: pytest.FixtureRequest) -> None:
    """Before Linux 6.16: here, a filter of system calls keeps the option from the program."""
    bench: Bench = request.getfixturevalue(build)
    with exporting(bench, WITHOUT_SO_PASSRIGHTS="1") as exporter:
        tasks = f"/proc/{exporter.process.pid}/task"
        before = len(os.listdir(tasks))
        with attacked(exporter) as refused:
            assert refused == 0
            ends_well(start(bench, "ipc_leaver", PreloadSettings()), exporter.large)
            # None of the threads that closed them is left.
            wait_for("threads", lambda: len(os.listdir(tasks)) == before)


def test_another_user_is_turned_away_before_it_has_spoken(plain: Bench) -> None:
    script = (
        "import os, socket, sys; os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534);"
        "asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); asked.settimeout(60);"
        "asked.connect(bytes.fromhex(sys.argv[1])); print(asked.recv(1))"
    )
    with exporting(plain) as exporter:
        done = subprocess.run(
            [sys.executable, "-c", script, address_of(exporter).hex()], capture_output=True, text=True, check=False
        )
    assert (done.stdout, done.stderr) == ("b''\n", "")


def asked(program: Target, *root: str) -> str:
    """What root is told that asks the program for a snapshot's memory, changed by a command of `ROOTS`."""
    with PreloadedProgram(program.pid) as seen:
        table = seen.table()
    assert table.service is not None
    region = table.regions[0]
    address = b"\0mpsguard-ipc-" + table.service.hex().encode()
    request = struct.pack("<8sQII", b"mpsgSNP\1", region.start, region.number, 0)
    done = subprocess.run(
        [*root, sys.executable, "-c", ASKING, "0", address.hex(), request.hex()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=True,
    )
    return done.stdout.strip()


REFUSED = {"refused", "answer  and 0"}


@pytest.mark.parametrize("root", ROOTS)
def test_root_of_a_container_is_a_stranger(plain: Bench, root: str) -> None:
    reachable(plain, plain.directory)
    with target(plain, user=STRANGER) as program:
        said = asked(program, *ROOTS[root])
    assert said in REFUSED if ROOTS[root] else said.startswith("answer 00")


@pytest.mark.parametrize("hidepid", ["off", "invisible"])
def test_root_is_a_stranger_to_a_program_that_does_not_see_it(plain: Bench, hidepid: str) -> None:
    reachable(plain, plain.directory)
    with target(plain, within=("unshare", "--mount", "sh", "-ec", WITH_HIDEPID, hidepid)) as program:
        said = asked(program)
    assert said.startswith("answer 00") if hidepid == "off" else said in REFUSED
