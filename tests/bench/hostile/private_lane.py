"""A client of another user through the guard, the server that runs as this user, and the user's way past the guard."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mpsguard.linux.processes import procfs
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, all_of, none_of
from tests.bench.core.programs import Work
from tests.bench.isolation.partial import skipped

_UID: Final = 65534
_AS_USER: Final = ("setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups")
_START: Final = 60.0
_DEADLINE: Final = 30.0
_CONNECT: Final = """
import socket, sys
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
    sock.settimeout(10)
    try:
        sock.connect(sys.argv[1])
    except PermissionError:
        sys.exit(13)
"""
"""Exit status 13 if it may not."""
_MAY_NOT: Final = 13


def measure(bench: Bench) -> Iterator[Finding]:
    """One client, and one attempt at each socket of its lane."""
    if bench.programs.simulated:
        yield skipped("private lane", "the simulated server is of another kind; tests/hostile has the vendor's daemon")
        return
    # Made for us alone; what is in it is for that user, too.
    bench.root.chmod(0o755)
    with bench.guard() as guard, Clients() as clients:
        work = bench.programs.worker(Work(seconds=2.0))
        client = clients.start([*_AS_USER, *work], guard.pipe_directory, "user")
        came = client.wait_for("first_kernel", _START)
        report = guard.lanes()[0]
        servers = {procfs.uid(server.process.pid)[0] for server in report.servers}
        known = client.pid in {each.process.pid for each in guard.clients()}
        passed = 0
        for name in ("control", "control_privileged"):
            command = [*_AS_USER, sys.executable, "-c", _CONNECT, str(Path(report.pipe_directory) / name)]
            done = subprocess.run(command, capture_output=True, timeout=_DEADLINE, check=False)
            bench.say(f"{name}: status {done.returncode} {done.stderr.decode(errors='replace')[-200:]}")
            passed += done.returncode != _MAY_NOT
        ended = client.finish()
    bench.say(f"servers of uids {servers}, client known: {known}, first kernel {came.monotonic:.1f}, {ended}")
    yield all_of("private lane: servers of the client's user", len(servers & {_UID}), 1, "servers")
    yield all_of("private lane: clients of that user that worked", int(known and ended.ok), 1, "clients")
    yield none_of("private lane: sockets that this user could reach past the guard", passed, 2, "sockets")


MEASUREMENT: Final = Measurement(
    "private_lane", "a client of another user through the guard, and its way past the guard", measure
)
