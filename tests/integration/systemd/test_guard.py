"""The guard under a real systemd: what it starts outlives it, and no client runs without MPS because it is away."""

import json

import pytest

from mpsguard.linux.systemd.journald import message_id
from tests.harness.waiting import PATIENCE
from tests.integration.systemd.installed import CONFIGURATION, PIPE_DIRECTORY, SERVICE, SOCKETS, Client, InstalledGuard

pytestmark = [pytest.mark.systemd, pytest.mark.root, pytest.mark.slow(seconds=60, reason="boots systemd")]


def test_start_is_reported_when_it_serves(guard: InstalledGuard) -> None:
    assert guard.machine.property(SERVICE, "Type") == "notify"
    assert guard.machine.property(SERVICE, "ActiveState") == "active"
    for name in SOCKETS:
        assert guard.machine.property(name, "ActiveState") == "active"
    domain = guard.status()["domains"][0]
    assert domain["sockets_held"]
    assert domain["lane"]["state"] == "ACTIVE"


def test_clients_of_other_users_are_served(guard: InstalledGuard) -> None:
    client = Client(guard.machine, uid=65534)
    client.wait_for("started")
    assert "bare" not in client.events()
    guard.knows(client.pid())
    client.end()


def test_no_other_user_lists_the_directories_also_where_an_earlier_version_let_them(guard: InstalledGuard) -> None:
    modes = {str(PIPE_DIRECTORY): "711", "/run/mpsguard": "711", "/var/lib/mpsguard": "700", "/var/log/mpsguard": "711"}

    def found() -> dict[str, str]:
        return {path: guard.machine.run("stat", "--format=%a", path).stdout.strip() for path in modes}

    assert found() == modes
    guard.machine.run("chmod", "0755", *modes)
    guard.machine.systemctl("restart", SERVICE)
    assert guard.status()["health"] == "healthy"
    assert found() == modes


def test_sigkill_costs_no_client_anything(guard: InstalledGuard, clients: list[Client]) -> None:
    before = State(guard, clients)
    guard.kill("SIGKILL")
    guard.wait_for_another(before.guard)
    before.must_stand(guard, clients)


def test_hung_guard_is_replaced(guard: InstalledGuard, clients: list[Client]) -> None:
    guard.drop_in("watchdog", "[Service]\nWatchdogSec=5\n")
    # The limit that counts is the one the running guard was started under.
    guard.machine.systemctl("restart", SERVICE)
    before = State(guard, clients)
    restarts = guard.restarts()
    guard.kill("SIGSTOP")
    guard.wait_for_another(before.guard)
    assert guard.restarts() > restarts
    before.must_stand(guard, clients)


def test_stop_leaves_lanes_running_and_start_adopts_them(guard: InstalledGuard, clients: list[Client]) -> None:
    before = State(guard, clients)
    guard.machine.systemctl("stop", SERVICE)
    assert guard.pid() == 0
    assert guard.ctl("status")[0] == 5
    guard.machine.run("kill", "-0", str(before.lane["control"]["pid"]))
    guard.machine.systemctl("start", SERVICE)
    before.must_stand(guard, clients)


def test_reload_is_whole_or_fails_and_costs_no_client_anything(guard: InstalledGuard, clients: list[Client]) -> None:
    good = guard.machine.run("cat", CONFIGURATION).stdout
    pid, lane = guard.pid(), guard.lane()
    more = f"{good}[domain.policy]\nmax_parked = 7\n"
    try:
        guard.machine.write(CONFIGURATION, more)
        guard.machine.systemctl("reload", SERVICE)
        # It has returned, so it is done: nothing is left to be reloaded.
        assert guard.ctl("reload") == (0, {"keys": []})
        guard.machine.write(CONFIGURATION, more.replace('group = "mpsguard"', 'group = "root"'))
        assert guard.machine.systemctl("reload", SERVICE, check=False).returncode != 0
        assert "guard.group" in guard.machine.journal(SERVICE)
    finally:
        guard.machine.write(CONFIGURATION, good)
    guard.machine.systemctl("reload", SERVICE)
    guard.kill("SIGHUP")
    assert guard.ctl("reload") == (0, {"keys": []})
    assert guard.machine.property(SERVICE, "ActiveState") == "active"
    assert (guard.pid(), guard.lane()) == (pid, lane)
    guard.knows(*(client.pid() for client in clients))


def test_events_are_entries_with_message_ids_and_fields(guard: InstalledGuard) -> None:
    guard.machine.systemctl("restart", SERVICE)
    client = Client(guard.machine)
    client.wait_for("started")
    pid = client.pid()
    matches = (f"MESSAGE_ID={message_id('client_connected')}", f"MPSGUARD_PID={pid}", f"_SYSTEMD_UNIT={SERVICE}")

    def entries() -> list[str]:
        guard.machine.run("journalctl", "--sync")
        return guard.machine.run("journalctl", "--output=json", *matches).stdout.splitlines()

    (line,) = guard.machine.wait_for(entries, PATIENCE, "the entry")
    entry = json.loads(line)
    assert (entry["MPSGUARD_EVENT"], entry["MPSGUARD_DOMAIN"], entry["PRIORITY"]) == (
        "client_connected",
        "default",
        "6",
    )
    assert json.loads(entry["MESSAGE"])["pid"] == pid
    client.end()


def test_client_waits_while_the_guard_is_away(guard: InstalledGuard, clients: list[Client]) -> None:
    before = State(guard, clients)
    with guard.kept_away():
        late = Client(guard.machine)
        guard.machine.wait_for(lambda: guard.waiting() == 1, PATIENCE, "a connection that is not accepted")
        assert late.events() == []
    late.wait_for("started")
    assert late.events() == ["connected", "started"]
    before.must_stand(guard, [*clients, late])
    late.end()


def test_client_wakes_a_stopped_guard(guard: InstalledGuard) -> None:
    guard.machine.systemctl("stop", SERVICE)
    client = Client(guard.machine)
    client.wait_for("started")
    assert client.events() == ["connected", "started"]
    assert guard.pid() != 0
    client.end()


def test_sockets_outlast_a_guard_that_cannot_start(guard: InstalledGuard) -> None:
    guard.drop_in("often", "[Service]\nRestartSec=20ms\n")
    good = guard.machine.run("cat", CONFIGURATION).stdout
    restarts = guard.restarts()
    guard.machine.write(CONFIGURATION, "[guard]\nno_such_key = 1\n")
    guard.kill("SIGKILL")
    client = Client(guard.machine)
    # systemd's default start limit is five in ten seconds: this is past it.
    guard.machine.wait_for(lambda: guard.restarts() > restarts + 7, 3 * PATIENCE, "many attempts")
    assert guard.waiting() == 1
    assert client.events() == []
    guard.machine.write(CONFIGURATION, good)
    client.wait_for("started")
    assert client.events() == ["connected", "started"]
    client.end()


def test_quit_is_the_end_until_the_next_client(guard: InstalledGuard) -> None:
    code, _ = guard.ctl("mps", "quit")
    assert code == 0
    # Not "activating", as it would be if systemd were about to start it again by itself.
    guard.machine.wait_for(
        lambda: guard.machine.property(SERVICE, "ActiveState") == "inactive", PATIENCE, "the guard's end"
    )
    client = Client(guard.machine)
    client.wait_for("started")
    assert client.events() == ["connected", "started"]
    client.end()


class State:
    """The pids that live at one moment: the guard, its lane, and the clients."""

    def __init__(self, guard: InstalledGuard, clients: list[Client]) -> None:
        self.guard = guard.pid()
        self.lane = guard.lane()
        self.clients = [client.pid() for client in clients]
        assert 0 not in self.clients
        guard.knows(*self.clients)

    def must_stand(self, guard: InstalledGuard, clients: list[Client]) -> None:
        """Another guard, but the same lane and the same clients, and it knows them."""
        assert guard.pid() not in (0, self.guard)
        assert guard.lane() == self.lane
        assert [client.pid() for client in clients][: len(self.clients)] == self.clients
        guard.knows(*(client.pid() for client in clients))
