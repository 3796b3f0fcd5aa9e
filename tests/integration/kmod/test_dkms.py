"""`mpsguard-kmod dkms` with Debian's dkms: each step fails in turn, and what is loaded after a reboot is looked at.

Before each fault our module of driver 580.1.1 is installed and works. What fails is the installation for 580.1.2.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kmod_patch import VERSION
from kmod_patch.modprobe import stock_command
from tests.integration.kmod.machines import KERNEL, NEW_KERNEL, Machine, missing

pytestmark = [
    pytest.mark.slow(seconds=90, reason="runs dkms some hundred times"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(missing() is not None, reason=str(missing())),
]

OLDER, NEWER = "580.1.1", "580.1.2"
STEPS = ("dkms build", "dkms install", "depmod")
OURS, STOCK = "mpsguard-nvidia-uvm", "nvidia-uvm"


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> tuple[Machine, Path, Path]:
    """A machine, and copies of it without our module and with the older one: DKMS's links hold at one path only."""
    machine = Machine(tmp_path_factory.mktemp("machine"))
    machine.prepare()
    bare, older = machine.directory / "bare", machine.directory / "older"
    shutil.copytree(machine.root, bare, symlinks=True)
    assert machine.install(machine.tree(OLDER)).returncode == 0
    shutil.copytree(machine.root, older, symlinks=True)
    return machine, bare, older


def back_to(machine: Machine, snapshot: Path) -> Machine:
    shutil.rmtree(machine.root)
    shutil.copytree(snapshot, machine.root, symlinks=True)
    return machine


@pytest.fixture
def bare(snapshots: tuple[Machine, Path, Path]) -> Machine:
    machine, snapshot, _ = snapshots
    return back_to(machine, snapshot)


@pytest.fixture
def upgrade(snapshots: tuple[Machine, Path, Path]) -> Machine:
    machine, _, snapshot = snapshots
    return back_to(machine, snapshot)


def without(tree: Path, name: str) -> Path:
    (tree / name).unlink()
    return tree


def with_text(tree: Path, name: str, text: str) -> Path:
    (tree / name).write_text(text)
    return tree


def test_ours_is_loaded_where_it_fits(bare: Machine) -> None:
    assert bare.loaded(OLDER) == f"{STOCK} {OLDER}"
    assert bare.install(bare.tree(OLDER)).returncode == 0
    assert bare.loaded(OLDER) == f"{OURS} {OLDER}"
    assert bare.says() == ""
    # The driver has been upgraded, and ours has not.
    bare.module(KERNEL, "kernel/nvidia-uvm.ko", NEWER)
    assert bare.loaded(NEWER) == f"{STOCK} {NEWER}"
    assert "the stock module is loaded" in bare.says()


def test_a_kernel_for_which_ours_was_not_built(upgrade: Machine) -> None:
    assert upgrade.loaded(OLDER, NEW_KERNEL) == f"{STOCK} {OLDER}"
    assert "the stock module is loaded" in upgrade.says()
    # DKMS builds it when that kernel is installed; the headers of this one refuse.
    include = upgrade.headers(NEW_KERNEL) / "include"
    include.rename(include.with_name("gone"))
    where = ["-k", NEW_KERNEL, "--kernelsourcedir", str(upgrade.headers(NEW_KERNEL))]
    assert upgrade.dkms("autoinstall", *where).returncode != 0
    assert upgrade.loaded(OLDER, NEW_KERNEL) == f"{STOCK} {OLDER}"
    include.with_name("gone").rename(include)
    assert upgrade.install(upgrade.tree(OLDER), NEW_KERNEL).returncode == 0
    assert [upgrade.loaded(OLDER, kernel) for kernel in (KERNEL, NEW_KERNEL)] == [f"{OURS} {OLDER}"] * 2
    # A newer driver for one of them: the older package stays for the other.
    assert upgrade.install(upgrade.tree(NEWER), NEW_KERNEL).returncode == 0
    assert upgrade.loaded(OLDER) == f"{OURS} {OLDER}"
    assert upgrade.loaded(NEWER, NEW_KERNEL) == f"{OURS} {NEWER}"


def test_dkms_builds_ours_for_a_new_kernel(upgrade: Machine) -> None:
    where = ["-k", NEW_KERNEL, "--kernelsourcedir", str(upgrade.headers(NEW_KERNEL))]
    done = upgrade.dkms("autoinstall", *where)
    assert done.returncode == 0, done.stderr
    upgrade.module(NEW_KERNEL, "kernel/nvidia.ko", OLDER)
    assert upgrade.loaded(OLDER, NEW_KERNEL) == f"{OURS} {OLDER}"


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("before dkms add", "no more room"),
        *[(f"{when} {step}", "no more room") for when in ("before", "after") for step in STEPS],
        ("a file is missing", "conftest.sh: is missing"),
        ("a rule does not fit", "rule new-hmm-block"),
        ("no object of the vendor's", "nv-kernel.o_binary"),
        ("the compiler refuses", "error: "),
        ("the line cannot be written", "Is a directory"),
    ],
)
def test_a_failed_step_leaves_what_works(upgrade: Machine, fault: str, said: str) -> None:
    before, tree = upgrade.contents(), upgrade.tree(NEWER)
    blocked = upgrade.line.with_name(f".{upgrade.line.name}.new")
    match fault:
        case "a file is missing":
            without(tree, "conftest.sh")
        case "a rule does not fit":
            with_text(tree, "nvidia-uvm/uvm_hmm.c", "int nothing;\n")
        case "no object of the vendor's":
            without(tree, "nvidia/nv-kernel.o_binary")
        case "the compiler refuses":
            with_text(tree, "nvidia-uvm/module.c", "#error not today\n")
        case "the line cannot be written":
            blocked.mkdir()
    injected = fault if fault.startswith(("before", "after")) else ""
    done = upgrade.install(tree, fault=injected)
    assert done.returncode not in (0, 1), done.stdout
    (line,) = done.stderr.splitlines()
    assert said in line
    assert "taking it back failed" not in line or blocked.exists()
    if blocked.exists():
        blocked.rmdir()
    assert upgrade.contents() == before
    assert upgrade.loaded(OLDER) == f"{OURS} {OLDER}"
    assert upgrade.loaded(NEWER) == f"{STOCK} {OLDER}"


@pytest.mark.parametrize("fault", ["after dkms build", "before dkms install", "after dkms install", "before depmod"])
def test_a_run_that_is_killed_can_be_run_again(upgrade: Machine, fault: str) -> None:
    """Whatever it has left, one of the two modules is loaded, and never one of another version than nvidia's."""
    done = upgrade.install(upgrade.tree(NEWER), fault=f"killed {fault}")
    assert done.returncode != 0
    assert upgrade.loaded(OLDER) in {f"{OURS} {OLDER}", f"{STOCK} {OLDER}"}
    assert upgrade.loaded(NEWER) in {f"{OURS} {NEWER}", f"{STOCK} {OLDER}"}
    again = upgrade.install(upgrade.tree(NEWER))
    assert again.returncode == 0, again.stderr
    assert upgrade.loaded(NEWER) == f"{OURS} {NEWER}"
    assert f"{NEWER}+mpsguard{VERSION}, {KERNEL}, " in upgrade.dkms("status").stdout
    assert OLDER not in upgrade.dkms("status").stdout


@pytest.mark.parametrize("fault", ["before dkms add", "after dkms install"])
def test_a_first_installation_that_fails_leaves_nothing(bare: Machine, fault: str) -> None:
    before = bare.contents()
    assert bare.install(bare.tree(OLDER), fault=fault).returncode == 9
    assert bare.contents() == before
    assert bare.loaded(OLDER) == f"{STOCK} {OLDER}"


def test_back_to_stock_also_after_a_failure(upgrade: Machine) -> None:
    arguments = ("dkms", "--remove", "--root", str(upgrade.root))
    failed = upgrade.kmod(*arguments, fault="before dkms remove")
    assert failed.returncode == 9
    assert upgrade.loaded(OLDER) == f"{STOCK} {OLDER}"
    assert upgrade.kmod(*arguments).returncode == 0
    assert not [name for name in upgrade.contents() if "mpsguard" in name]
    assert upgrade.loaded(OLDER) == f"{STOCK} {OLDER}"


def test_the_distribution_s_own_line_is_what_is_gone_back_to(bare: Machine) -> None:
    """Debian's packages give the stock modules other names, and have lines of their own."""
    (bare.root / "etc/modprobe.d/nvidia.conf").write_text(
        "install nvidia-uvm modprobe nvidia; modprobe -i nvidia-current-uvm $CMDLINE_OPTS\n"
    )
    bare.module(KERNEL, "nvidia/nvidia-current-uvm.ko", NEWER)
    assert bare.install(bare.tree(OLDER)).returncode == 0
    assert bare.loaded(OLDER) == f"{OURS} {OLDER}"
    assert bare.loaded(NEWER) == f"nvidia-current-uvm {NEWER}"
    # Ours is none that could be gone back to.
    assert stock_command(OURS, bare.root) == "modprobe nvidia; modprobe -i nvidia-current-uvm $CMDLINE_OPTS"


def test_a_line_that_comes_before_ours_is_reported(bare: Machine) -> None:
    (bare.root / "etc/modprobe.d/blacklist.conf").write_text("install nvidia-uvm /bin/false\n")
    before = bare.contents()
    done = bare.install(bare.tree(OLDER))
    assert done.returncode == 6
    assert "/bin/false" in done.stderr
    assert bare.contents() == before
