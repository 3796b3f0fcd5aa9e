"""The Debian package in a booted system: install, upgrade under clients, refuse, remove, purge."""

import json
import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pytest

from mpsguard import __version__
from tests.harness.waiting import PATIENCE
from tests.integration.systemd import packaged
from tests.integration.systemd.booted import BootedSystemd
from tests.integration.systemd.conftest import SEEN_INSIDE
from tests.integration.systemd.installed import (
    CONFIGURATION,
    CONFIGURED,
    PIPE_DIRECTORY,
    REPOSITORY,
    SERVICE,
    SIMULATED,
    SOCKETS,
    Client,
    InstalledGuard,
)

pytestmark = [
    pytest.mark.systemd,
    pytest.mark.root,
    pytest.mark.slow(seconds=120, reason="builds the Debian package and boots systemd"),
]

INSIDE = Path("/opt/packages")
PROGRAM = "/usr/lib/mpsguard/bin/python3.11"


class PackagedGuard(InstalledGuard):
    """The guard as its Debian package installs it."""

    def __init__(self, machine: BootedSystemd) -> None:
        super().__init__(machine)
        machine.run("rm", "-rf", "/etc/mpsguard", "/var/lib/mpsguard", "/var/log/mpsguard")
        self.before = paths_with_the_name(machine)
        """What had the project's name when nothing was installed."""

    def dpkg(self, *arguments: str | Path, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run dpkg as apt does without a terminal: an existing configuration stays."""
        environment = ["env", "DEBIAN_FRONTEND=noninteractive"]
        # No trigger: man-db would index the pages of all packages each time.
        options = ("--force-confold", "--force-unsafe-io", "--no-triggers")
        return self.machine.run(*environment, "dpkg", *options, *arguments, check=check, deadline=120.0)

    def remove_package(self, how: str) -> None:
        """Remove it, if it is installed."""
        if self.is_installed():
            self.dpkg(how, "mpsguard")

    def is_installed(self) -> bool:
        """Whether dpkg has it installed and configured."""
        said = self.machine.run("dpkg-query", "--show", "--showformat=${db:Status-Status}", "mpsguard", check=False)
        return said.stdout == "installed"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """deb, wheel and source archive, and the bill of materials, by the ends of their names."""
    return packaged.kept_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="module")
def packages(built: dict[str, Path]) -> dict[str, Path]:
    """The package, and its next version."""
    first = built["deb"]
    directory = first.parent
    return {"first.deb": first, "later.deb": packaged.later(first, directory)}


@pytest.fixture(scope="module")
def prepared(machine: BootedSystemd, packages: dict[str, Path]) -> PackagedGuard:
    """A machine on which the packages lie, with a configuration for the simulated daemon."""
    guard = PackagedGuard(machine)
    guard.open_to_every_user(*SEEN_INSIDE)
    # A container's image has it, so that packages start nothing while the image is built. A booted system has none.
    machine.run("rm", "-f", "/usr/sbin/policy-rc.d")
    for name, path in packages.items():
        machine.copy_file_in(path, INSIDE / name)
    return guard


@pytest.fixture
def packaged_guard(prepared: PackagedGuard) -> PackagedGuard:
    """The same, with the first version installed and running."""
    prepared.machine.write(CONFIGURATION, CONFIGURED)
    if not prepared.is_installed():
        prepared.dpkg("--install", INSIDE / "first.deb")
    return prepared


@pytest.fixture
def four(packaged_guard: PackagedGuard) -> Iterator[list[Client]]:
    """Four clients at work; each has to end well."""
    started = [Client(packaged_guard.machine) for _ in range(4)]
    for client in started:
        client.wait_for("started")
    yield started
    for client in started:
        client.end()


def paths_with_the_name(machine: BootedSystemd) -> set[str]:
    """Everything named after the project where packages and the guard put files, but for dpkg's own records."""
    pruned = [word for path in (REPOSITORY, *SEEN_INSIDE, "/var/lib/dpkg") for word in ("-path", path, "-prune", "-o")]
    where = ("/etc", "/usr/bin", "/usr/lib", "/usr/share", "/usr/local/bin", "/usr/local/share", "/var")
    return set(machine.run("find", *where, *pruned, "-name", "*mpsguard*", "-print").stdout.splitlines())


def test_installed_it_runs_and_starts_with_the_machine(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    assert packaged_guard.status()["domains"][0]["sockets_held"]
    for name in (SERVICE, *SOCKETS):
        assert machine.systemctl("is-enabled", name).stdout == "enabled\n"
    assert machine.run("cat", CONFIGURATION).stdout == CONFIGURED


def test_the_program_is_its_own(packaged_guard: PackagedGuard) -> None:
    machine, pid = packaged_guard.machine, packaged_guard.pid()
    assert machine.run("readlink", f"/proc/{pid}/exe").stdout.strip() == PROGRAM
    maps = machine.run("cat", f"/proc/{pid}/maps").stdout.splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in maps if "/" in line}
    assert {path for path in mapped if "python" in path and not path.startswith("/usr/lib/mpsguard/")} == set()
    client = Client(machine)
    client.wait_for("started")
    client.end()
    # No call has left or changed a file.
    changed = machine.run("dpkg", "--verify", "mpsguard").stdout.splitlines()
    assert [line for line in changed if not line.endswith(str(CONFIGURATION))] == []
    owned = machine.run("dpkg-query", "--listfiles", "mpsguard").stdout.splitlines()
    there = machine.run("find", "/usr/lib/mpsguard").stdout.splitlines()
    assert set(there) <= set(owned)


def test_upgrade_costs_no_client_anything(packaged_guard: PackagedGuard, four: list[Client]) -> None:
    machine = packaged_guard.machine
    before, lane, pids = packaged_guard.pid(), packaged_guard.lane(), [client.pid() for client in four]
    bound = {name: machine.property(name, "ActiveEnterTimestampMonotonic") for name in SOCKETS}
    packaged_guard.dpkg("--unpack", INSIDE / "later.deb")
    # Between the two steps of dpkg, the old guard runs over the new files.
    between = Client(machine)
    between.wait_for("started")
    packaged_guard.dpkg("--configure", "mpsguard")
    assert packaged_guard.status()["version"] == packaged.LATER
    assert packaged_guard.pid() not in (0, before)
    assert packaged_guard.lane() == lane
    assert [client.pid() for client in four] == pids
    packaged_guard.knows(*pids, between.pid())
    assert bound == {name: machine.property(name, "ActiveEnterTimestampMonotonic") for name in SOCKETS}
    assert machine.run("cat", CONFIGURATION).stdout == CONFIGURED
    assert "bare" not in {event for client in (*four, between) for event in client.events()}
    between.end()


def test_what_an_administrator_stopped_and_disabled_stays_so(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    # As an upgrade runs it.
    configure = ("/var/lib/dpkg/info/mpsguard.postinst", "configure", f"{__version__}-1")
    machine.systemctl("stop", SERVICE)
    machine.run(*configure)
    assert machine.property(SERVICE, "ActiveState") == "inactive"
    assert machine.property(SOCKETS[0], "ActiveState") == "active"
    machine.systemctl("disable", "--now", SERVICE, *SOCKETS)
    machine.run(*configure)
    for name in (SERVICE, *SOCKETS):
        assert machine.systemctl("is-enabled", name, check=False).stdout == "disabled\n"
        assert machine.property(name, "ActiveState") == "inactive"
    machine.systemctl("enable", "--now", *SOCKETS, SERVICE)
    assert packaged_guard.status()["health"] == "healthy"


def test_logs_are_rotated_under_a_running_lane(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    if machine.run("which", "logrotate", check=False).returncode:
        pytest.skip("logrotate is not installed")
    lane = packaged_guard.lane()
    logs = "/var/log/mpsguard/default-0/control.log"
    assert machine.run("test", "-s", logs, check=False).returncode == 0
    machine.run("logrotate", "--force", "--state=/run/logrotate", "/etc/logrotate.d/mpsguard")
    assert machine.run("test", "-s", f"{logs}.1", check=False).returncode == 0
    client = Client(machine)
    client.wait_for("started")
    packaged_guard.knows(client.pid())
    assert packaged_guard.lane() == lane
    client.end()


def test_guides_and_examples_are_there_and_no_page_leads_elsewhere(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    root = "/usr/share/doc/mpsguard"
    names = set(machine.run("find", root, "-type", "f", "-printf", "%P\\n").stdout.splitlines())
    wanted = {"README.md", "docs/README.md", "docs/guides/slurm.md", "docs/start/install.md", "docs/results/SUMMARY.md"}
    wanted |= {f"examples/{name}" for name in ("slurm/prolog", "monitoring/mpsguard.rules.yml")}
    wanted |= {"examples/kubernetes/chart/Chart.yaml", "examples/count_server.py"}
    assert wanted - names == set()
    machine.run("test", "-x", f"{root}/examples/slurm/prolog")
    page = machine.run("cat", f"{root}/docs/README.md").stdout
    links = {link.partition("#")[0] for link in re.findall(r"\]\(([^):\s]+\.md[^)\s]*)\)", page)}
    assert len(links) > 20
    assert {link for link in links if f"docs/{link}" not in names} == set()


@pytest.mark.parametrize(
    "command",
    [
        ("mpsguard-ctl", "image", "list"),
        ("mpsguard-ctl", "snapshot", "--help"),
        ("mpsguard-ctl", "top", "--help"),
        ("mpsguard", "pool", "--help"),
        # What they import late.
        (
            "/usr/lib/mpsguard/bin/python3",
            "-I",
            "-c",
            "import blake3, cuda.bindings.driver, numpy, safetensors, textual",
        ),
        # It has come as far as to look at the program.
        ("sh", "-c", "mpsguard-ctl snapshot 1 2>&1 | grep -v needs"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_commands_have_what_they_need(packaged_guard: PackagedGuard, command: tuple[str, ...]) -> None:
    packaged_guard.machine.run(*command)


def test_manual_and_completion(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    page = machine.run("zcat", "/usr/share/man/man1/mpsguard-ctl-status.1.gz").stdout
    assert page.startswith('.TH "MPSGUARD-CTL STATUS"')
    completed = (
        "source /usr/share/bash-completion/completions/mpsguard-ctl; COMP_WORDS=(mpsguard-ctl stat); COMP_CWORD=1;"
        "_mpsguard_ctl_completion mpsguard-ctl; echo ${COMPREPLY[@]}"
    )
    assert machine.run("bash", "-c", completed).stdout.strip() == "status"


def test_removal_leaves_lanes_and_clients_and_says_so(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    client = Client(machine)
    client.wait_for("started")
    control = packaged_guard.lane()["control"]["pid"]
    said = packaged_guard.dpkg("--remove", "mpsguard").stdout
    pipe = Path("/run/mpsguard/lanes/default-0/pipe")
    assert f"quit | CUDA_MPS_PIPE_DIRECTORY={pipe}" in said
    machine.run("kill", "-0", str(control))
    assert machine.run("test", "-e", PIPE_DIRECTORY / "control", check=False).returncode == 1
    client.end()
    # The command that it names.
    machine.run("env", f"CUDA_MPS_PIPE_DIRECTORY={pipe}", SIMULATED, stdin="quit\n")
    machine.wait_for(lambda: machine.run("kill", "-0", str(control), check=False).returncode, PATIENCE, "its end")


def test_beside_a_stock_daemon_it_is_installed_and_not_started(prepared: PackagedGuard) -> None:
    machine = prepared.machine
    prepared.remove_package("--remove")
    environment = ["env", f"CUDA_MPS_PIPE_DIRECTORY={PIPE_DIRECTORY}", "CUDA_MPS_LOG_DIRECTORY=/var/log"]
    machine.run(*environment, SIMULATED, "-d")
    done = prepared.dpkg("--install", INSIDE / "later.deb")
    assert f"an MPS control daemon runs at {PIPE_DIRECTORY}" in done.stderr
    assert machine.property(SERVICE, "ActiveState") == "inactive"
    machine.run(*environment, SIMULATED, "quit")
    sockets = "/proc/net/unix"
    machine.wait_for(
        lambda: f"{PIPE_DIRECTORY}/control\n" not in machine.run("cat", sockets).stdout, PATIENCE, "its end"
    )
    machine.systemctl("start", SERVICE)
    assert prepared.status()["health"] == "healthy"


def test_scripts_install_refuses_beside_the_package(packaged_guard: PackagedGuard) -> None:
    refused = packaged_guard.install(check=False)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
    assert "dpkg --remove" in refused.stderr
    assert packaged_guard.status()["health"] == "healthy"


def test_wheel_has_both_libraries_for_any_python(built: dict[str, Path]) -> None:
    assert re.fullmatch(r"mpsguard-[\d.]+-py3-none-manylinux_\d+_\d+_x86_64\.whl", built["whl"].name)
    with ZipFile(built["whl"]) as wheel:
        libraries = {Path(name).name for name in wheel.namelist() if name.endswith(".so")}
    assert libraries == {"libmpsguard.so", "libmpsguard_pool.so"}
    with tarfile.open(built["gz"]) as archive:
        assert any(name.endswith("/mpsguard/preload/exports.map") for name in archive.getnames())


def test_bill_names_packages_and_interpreter(built: dict[str, Path]) -> None:
    bill = json.loads(built["json"].read_bytes())
    assert bill["metadata"]["component"]["name"] == "mpsguard"
    urls = {component["purl"].partition("@")[0] for component in bill["components"] if "purl" in component}
    assert {"pkg:pypi/msgspec", "pkg:pypi/pyzmq", "pkg:deb/debian/python3.11-minimal", "pkg:deb/debian/zlib1g"} <= urls


def test_purge_leaves_nothing_but_the_group(packaged_guard: PackagedGuard) -> None:
    machine = packaged_guard.machine
    assert packaged_guard.ctl("mps", "quit")[0] == 0
    packaged_guard.dpkg("--purge", "mpsguard")
    assert paths_with_the_name(machine) - packaged_guard.before == set()
    for name in (SERVICE, *SOCKETS):
        assert machine.property(name, "LoadState") == "not-found"
    assert machine.run("getent", "group", "mpsguard", check=False).returncode == 0


def test_the_package_refuses_beside_scripts_install(prepared: PackagedGuard) -> None:
    prepared.remove_package("--purge")
    prepared.install("--no-start")
    done = prepared.dpkg("--install", INSIDE / "first.deb", check=False)
    assert done.returncode == 1
    assert "scripts/install --uninstall" in done.stderr
    prepared.uninstall()
