"""Too many descriptors of a user in flight are no error of its program."""

import subprocess
import sys
from pathlib import Path

import mpsguard


def test_too_many_descriptors_in_flight_are_an_end_of_the_supervisor(tmp_path: Path) -> None:
    """The kernel counts those of a user without CAP_SYS_RESOURCE and CAP_SYS_ADMIN over all its processes."""
    script = tmp_path / "unprivileged.py"
    script.write_text(IN_FLIGHT.format(package=str(Path(mpsguard.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "-I", script], capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert (done.returncode, done.stdout) == (0, "not kept\n"), done.stderr


IN_FLIGHT = """
import os, resource, socket, sys
sys.path.insert(0, {package!r})
from mpsguard.vault.client import supervisor_channel
from mpsguard.vault.client.kept_connections import KeptConnections
supervisor_channel.DEADLINE = 0.3
if os.getuid() == 0:
    os.setgroups([])
    os.setresgid(54321, 54321, 54321)
    os.setresuid(54321, 54321, 54321)
ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
held, other = socket.socketpair()
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
queue, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    while True:
        socket.send_fds(queue, [b"!"], [held.fileno()] * 8)
except OSError as error:
    assert error.errno == 109, error
kept = KeptConnections(supervisor_channel.SupervisorChannel(ours))
kept.keep(held, 1)
print("not kept" if not kept.kept else "kept")
"""
