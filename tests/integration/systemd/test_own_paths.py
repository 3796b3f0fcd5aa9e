"""The guard's own paths under systemd: made again while the guard runs, and by a restart of its service."""

import json

import pytest

from tests.harness.waiting import PATIENCE
from tests.integration.systemd.installed import PIPE_DIRECTORY, SERVICE, SOCKETS, Client, InstalledGuard

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=60, reason="boots systemd")]

CONTROL = PIPE_DIRECTORY / "control"
UNMOUNT = f"while mountpoint -q {PIPE_DIRECTORY}; do umount --lazy {PIPE_DIRECTORY}; done"
WAYS = {
    "removed": f"rm -rf {PIPE_DIRECTORY}",
    "emptied": f"rm -f {PIPE_DIRECTORY}/*",
    "renamed": f"mv {PIPE_DIRECTORY} {PIPE_DIRECTORY}.$$",
    "another directory": f"mv {PIPE_DIRECTORY} {PIPE_DIRECTORY}.$$ && mkdir {PIPE_DIRECTORY}",
    "closed to other users": f"chmod 0700 {PIPE_DIRECTORY} && chmod 0600 {CONTROL}",
    "given away": f"chown -R nobody {PIPE_DIRECTORY}",
    "mounted over": f"mount -t tmpfs -o mode=0755 tmpfs {PIPE_DIRECTORY}",
}


def has_mps(guard: InstalledGuard) -> bool:
    """Whether another user's program that starts now runs under the guard's MPS."""
    client = Client(guard.machine, uid=65534)
    try:
        client.wait_for("started")
        return "bare" not in client.events()
    finally:
        client.end()


def mended(guard: InstalledGuard) -> int:
    """How often this guard has made a path again."""
    lines = guard.machine.run("mpsguard-ctl", "--json", "events").stdout.splitlines()
    return sum(json.loads(line)["kind"] == "path_mended" for line in lines)


@pytest.mark.parametrize("way", WAYS)
def test_the_public_directory_is_made_again(guard: InstalledGuard, way: str) -> None:
    # As on every machine but a container: what is mounted later is seen by services, too.
    guard.machine.run("mount", "--make-rshared", "/")
    guard.machine.systemctl("restart", SERVICE)
    lane = guard.lane()["control"]
    before = mended(guard)
    guard.machine.run("sh", "-c", WAYS[way])
    guard.machine.wait_for(lambda: mended(guard) > before, PATIENCE, "the directory made again")
    assert has_mps(guard)
    assert guard.status()["health"] == "healthy"
    # What systemd holds is what it was: the guard stores its own, also over a crash and a restart.
    old = guard.pid()
    guard.kill("SIGKILL")
    guard.wait_for_another(old)
    assert has_mps(guard)
    assert guard.lane()["control"] == lane
    guard.machine.run("sh", "-c", UNMOUNT)
    guard.machine.wait_for(lambda: guard.ctl("status")[0] == 0, PATIENCE, "its health")


# That a directory was closed or given away while no guard ran, the next one cannot know: it might be meant so.
@pytest.mark.parametrize("way", sorted(WAYS.keys() - {"given away", "closed to other users"}))
def test_a_start_of_the_service_makes_it_again(guard: InstalledGuard, way: str) -> None:
    guard.machine.systemctl("stop", SERVICE)
    guard.machine.run("sh", "-c", WAYS[way])
    guard.machine.systemctl("start", SERVICE)
    assert guard.status()["health"] == "healthy"
    assert has_mps(guard)
    guard.machine.run("sh", "-c", UNMOUNT)


@pytest.mark.parametrize("directory", ["/run/mpsguard", "/var/lib/mpsguard", "/var/log/mpsguard"])
@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_the_directories_of_the_service_are_made_again(guard: InstalledGuard, directory: str, stopped: bool) -> None:
    guard.machine.systemctl("restart", SERVICE)
    if stopped:
        guard.machine.systemctl("stop", SERVICE)
    # A unit's directory may be a link or a mount point: what is in it goes in any case.
    guard.machine.run("sh", "-c", f"rm -rf {directory} || rm -rf {directory}/*")
    guard.machine.systemctl("start", SERVICE)
    guard.machine.wait_for(lambda: guard.ctl("status")[0] == 0, PATIENCE, "its health")
    assert has_mps(guard)
    guard.machine.systemctl("restart", SERVICE)
    guard.machine.wait_for(lambda: guard.ctl("status")[0] == 0, PATIENCE, "the next one's health")
    assert has_mps(guard)


def test_a_restart_of_the_socket_units_has_systemd_hold_the_sockets_again(guard: InstalledGuard) -> None:
    guard.machine.run("rm", "-rf", PIPE_DIRECTORY)
    guard.machine.wait_for(lambda: not guard.status()["domains"][0]["sockets_held"], PATIENCE, "sockets of its own")
    guard.machine.systemctl("restart", *SOCKETS)
    guard.machine.systemctl("start", SERVICE)
    assert guard.status()["domains"][0]["sockets_held"]
    with guard.kept_away():
        client = Client(guard.machine)
        guard.machine.wait_for(lambda: guard.waiting() > 0, PATIENCE, "a client that waits")
    client.wait_for("started")
    assert "bare" not in client.events()
    client.end()


def test_what_may_not_be_touched_is_told_and_put_right_when_it_is_gone(guard: InstalledGuard) -> None:
    guard.machine.run("sh", "-c", f"rm {CONTROL} && touch {CONTROL}")
    guard.machine.wait_for(lambda: guard.ctl("status")[0] == 3, PATIENCE, "degraded")
    probes = [guard.ctl("check", "--for", purpose)[0] for purpose in ("live", "ready", "slurm", "npd")]
    assert probes == [0, 1, 1, 1]
    guard.machine.run("rm", CONTROL)
    guard.machine.wait_for(lambda: guard.ctl("status")[0] == 0, PATIENCE, "healthy")
    assert has_mps(guard)
