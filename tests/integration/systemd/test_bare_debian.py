"""A new user on a bare Debian without any Python: from the package, and from the bundle, to a guarded client.

MPS and GPU are simulated. The simulation is in Python and runs under the interpreter that the package brings.
"""

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard import __version__
from tests.harness.waiting import PATIENCE
from tests.integration.systemd import packaged
from tests.integration.systemd.booted import BootedSystemd, missing
from tests.integration.systemd.installed import REPOSITORY, SERVICE, SIMULATED

# A campaign's: apt fetches 200 MiB of a system, which takes half a minute and is the same every time.
pytestmark = [pytest.mark.soak, pytest.mark.systemd, pytest.mark.root, pytest.mark.timeout(1800)]

# glibc comes with any system; apt would install libexpat1, the package's other need, from the network.
INCLUDED = "systemd,systemd-sysv,libexpat1,init-system-helpers"
PAGE = REPOSITORY / "docs" / "start" / "packages.md"
MOST_COMMANDS = 4
HOME = Path("/srv")
"""Where the user of the bare machine works."""
CONTROL = """\
#!/bin/sh
# The package's interpreter, or the bundle's.
for python in /usr/lib/mpsguard/bin/python3 /opt/mpsguard/current/bin/python3; do
    [ ! -x "$python" ] || MPSGUARD_SIM_PYTHON=$python exec {simulated} "$@"
done
"""
PROGRAM = """\
#!/bin/sh
cd {repository}
for python in /usr/lib/mpsguard/bin/python3 /opt/mpsguard/current/bin/python3; do
    [ ! -x "$python" ] || exec $python -m fault_injection.sim.client --seconds 5
done
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """deb and bundle."""
    return packaged.build(tmp_path_factory.mktemp("packages"), "deb", "bundle")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A root directory with Debian's essential packages and systemd, fetched by apt."""
    reason = missing() or (None if shutil.which("mmdebstrap") else "mmdebstrap is not installed")
    if reason is not None:
        pytest.skip(reason)
    root = tmp_path_factory.mktemp("debian") / "root"
    # The host's own: that is what its keys are for.
    release = platform.freedesktop_os_release()["VERSION_CODENAME"]
    command: list[str | Path] = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={INCLUDED}", release, root]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    if done.returncode:
        pytest.skip(f"mmdebstrap: {done.stderr.splitlines()[-1]}")
    yield root
    shutil.rmtree(root)


@pytest.fixture
def bare(system: Path) -> Iterator[BootedSystemd]:
    """That system, booted, with a stand-in for the vendor's daemon and a program that uses the GPU."""
    with BootedSystemd([REPOSITORY], root=system) as machine:
        assert machine.run("which", "python3", check=False).returncode == 1
        machine.write("/usr/local/bin/nvidia-cuda-mps-control", CONTROL.format(simulated=SIMULATED))
        machine.write(f"{HOME}/your-cuda-program", PROGRAM.format(repository=REPOSITORY))
        machine.run("chmod", "755", "/usr/local/bin/nvidia-cuda-mps-control", f"{HOME}/your-cuda-program")
        # Where there is no policy, an installed service is started: that of the image's maker is not the user's.
        machine.run("rm", "-f", "/usr/sbin/policy-rc.d")
        yield machine


def commands(heading: str) -> list[str]:
    """The commands that stand first under a heading of the page, as root types them."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2]
    block = re.search(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert block is not None
    return [line.strip().removeprefix("sudo ") for line in block.group().splitlines()]


def guarded(machine: BootedSystemd, typed: list[str]) -> None:
    """Type the commands in one shell; at the end of them a program runs under MPS, and the guard knows of it."""
    assert len(typed) <= MOST_COMMANDS
    done = machine.run("sh", "-e", stdin=f"cd {HOME}\n" + "\n".join(typed), deadline=180.0)
    assert '"event": "started"' in done.stdout
    assert '"bare"' not in done.stdout
    assert "client_connected" in machine.run("mpsguard-ctl", "--json", "events").stdout


def test_from_the_package_to_a_guarded_client(bare: BootedSystemd, built: dict[str, Path]) -> None:
    bare.copy_file_in(built["deb"], HOME / built["deb"].name)
    guarded(bare, commands("Debian and Ubuntu"))


def test_from_the_bundle_to_a_guarded_client(bare: BootedSystemd, built: dict[str, Path]) -> None:
    bare.copy_file_in(built["gz"], HOME / built["gz"].name)
    guarded(bare, commands("Other distributions"))
    bare.run("sh", "-c", f"{HOME}/mpsguard-*/scripts/install --uninstall")
    bare.wait_for(lambda: bare.property(SERVICE, "LoadState") == "not-found", PATIENCE, "an uninstalled service")
    assert bare.run("find", "/opt/mpsguard", "/usr/local", "-name", "*mpsguard*", check=False).stdout == ""


def test_image_is_built_and_its_program_runs(system: Path, built: dict[str, Path], tmp_path: Path) -> None:
    if shutil.which("buildah") is None:
        pytest.skip("buildah is not installed")
    environment = {**os.environ, "STORAGE_DRIVER": "vfs", "BUILDAH_ISOLATION": "chroot"}

    def buildah(*words: str | Path) -> str:
        command: list[str | Path] = ["buildah", "--root", tmp_path / "root", "--runroot", tmp_path / "run", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    # In the place of the base image, which no registry is asked for.
    base = buildah("from", "scratch")
    buildah("add", base, system, "/")
    buildah("commit", base, "localhost/base")
    recipe = REPOSITORY / "distribution" / "Containerfile"
    buildah(
        "build", "--build-arg", "BASE=localhost/base", "--file", recipe, "--tag", "localhost/it", built["deb"].parent
    )
    container = buildah("from", "localhost/it")
    assert __version__ in buildah("run", container, "--", "mpsguard-ctl", "--version")
