"""series: patches that apply one after the other, each a whole part, without what only this tool needs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from kmod_patch.cli import main
from kmod_patch.errors import RuleError
from kmod_patch.patch import SOURCE
from kmod_patch.series import series
from kmod_patch.tree import open_tree
from tests.unit.kmod import trees

pytestmark = pytest.mark.skipif(shutil.which("spatch") is None, reason="Coccinelle (spatch) is not installed")

POLICY_C = """\
#include "uvm_fault_isolation.h"
#include "uvm_fault_isolation_branch.h"
#include "uvm_fault_report.h"

static uint uvm_fault_isolation = POLICY_SHARED_TSG;

/* For the tool. */
static char *version = UVM_ISOLATION_VERSION;
module_param(version, charp, S_IRUGO);

bool contain(gpu_t *gpu, sub_t *subs)
{
    bool fine = true;

    /* Somewhere it must be heard. */
    if (fine && !uvm_fault_report_is_heard())
        return false;

    uvm_fault_report_contained(gpu);
    return UVM_ISOLATION_HAS_SPARSE(gpu->parent) && !UVM_ISOLATION_IS_SUBCTX_OF(&subs[1], gpu);
}
"""
POLICY_H = """\
#include "uvm_fault_report.h"

typedef struct
{
    int poisoned;

    /* Of the first fault. */
    uvm_fault_report_t report;
} uvm_va_space_isolation_t;
"""
REPORT_C = '#include "uvm_fault_report.h"\n\nbool uvm_fault_report_is_heard(void)\n{\n    return true;\n}\n'


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return trees.make(tmp_path / "tree")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Files of ours in the shape that they have: containment, and a report in a file of its own."""
    directory = tmp_path / "source"
    directory.mkdir()
    (directory / "uvm_fault_isolation.c").write_text(POLICY_C)
    (directory / "uvm_fault_isolation.h").write_text(POLICY_H)
    (directory / "uvm_fault_report.c").write_text(REPORT_C)
    (directory / "uvm_fault_report.h").write_text("typedef struct { int number; } uvm_fault_report_t;\n")
    return directory


def applied(root: Path, patch: Path | str) -> Path:
    """The tree, with a patch applied by git, which is stricter than patch(1)."""
    text = patch.read_text() if isinstance(patch, Path) else patch
    command = ["git", "apply", "--whitespace=error", "-"]
    subprocess.run(command, cwd=root, input=text, text=True, check=True, capture_output=True, timeout=60.0)
    return root


def test_the_patches_apply_in_turn(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "patches").mkdir()
    before = trees.contents(tree)
    assert main(["series", str(tree), "--output", str(tmp_path / "patches")]) == 0
    assert trees.contents(tree) == before
    first, *others = sorted((tmp_path / "patches").iterdir())
    assert first.name == "0001-containment.patch"
    uvm = applied(tree, first) / "nvidia-uvm"
    text = (uvm / "uvm_fault_isolation.c").read_text()
    assert "uvm_fault_isolation_contain(" in (uvm / "uvm_gpu_replayable_faults.c").read_text()
    assert "static uint uvm_fault_isolation = POLICY_NEVER;" in text
    assert not (uvm / "uvm_fault_isolation_test.c").exists()
    assert "fault_isolation" not in (uvm / "uvm_test.c").read_text()
    for other in others:
        applied(tree, other)
    assert "uvm_fault_isolation_test" in (uvm / "uvm_test.c").read_text()
    assert {path.name for path in SOURCE.iterdir()} <= {path.name for path in uvm.iterdir()}
    assert [path for path in uvm.iterdir() if "UVM_ISOLATION_" in path.read_text()] == []
    sources = (uvm / "nvidia-uvm-sources.Kbuild").read_text()
    assert all(f"nvidia-uvm/{path.name}\n" in sources for path in SOURCE.glob("*.c"))


def test_a_part_is_left_out_by_meaning(tree: Path, source: Path) -> None:
    first, second = series(open_tree(tree), source)
    uvm = applied(tree, first.text) / "nvidia-uvm"
    text = (uvm / "uvm_fault_isolation.c").read_text()
    assert "report" not in text + (uvm / "uvm_fault_isolation.h").read_text()
    assert "must be heard" not in text
    assert "return !(subs[1].gpu_va_space == gpu);" in text
    assert "version" not in text
    assert "POLICY_NEVER" in text
    whole = (applied(tree, second.text) / "nvidia-uvm/uvm_fault_isolation.c").read_text()
    assert "if (fine && !uvm_fault_report_is_heard())" in whole
    assert "uvm_fault_report_contained(gpu);" in whole
    assert "POLICY_SHARED_TSG" in whole


def test_what_cannot_be_left_out_is_named(tree: Path, source: Path) -> None:
    path = source / "uvm_fault_isolation.c"
    path.write_text(path.read_text().replace("bool fine = true;", "bool fine = uvm_fault_report_is_heard();"))
    with pytest.raises(RuleError, match=r"fine = uvm_fault_report_is_heard\(\);: cannot be left out"):
        series(open_tree(tree), source)


def test_a_member_that_is_left_is_named(tree: Path, source: Path) -> None:
    path = source / "uvm_fault_isolation.c"
    path.write_text(path.read_text().replace("bool fine = true;", "bool fine = gpu->isolation.report.number;"))
    with pytest.raises(RuleError, match="report: is a member that a patch without its part does not have"):
        series(open_tree(tree), source)


def test_a_macro_that_is_left_is_named(tree: Path, source: Path) -> None:
    path = source / "uvm_fault_isolation.c"
    path.write_text(path.read_text().replace("bool fine = true;", "bool fine = UVM_ISOLATION_OTHER(gpu);"))
    with pytest.raises(RuleError, match="UVM_ISOLATION_OTHER: is not used in a way"):
        series(open_tree(tree), source)


def test_a_clone_has_its_own_paths(tmp_path: Path) -> None:
    trees.make(tmp_path / "clone" / "kernel-open")
    assert main(["series", str(tmp_path / "clone"), "--output", str(tmp_path)]) == 0
    applied(tmp_path / "clone", tmp_path / "0001-containment.patch")


def test_a_tree_that_is_patched_is_refused(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", str(tree)]) == 0
    assert main(["series", str(tree), "--output", str(tmp_path)]) == 3
    assert "is patched; " in capsys.readouterr().err
    assert main(["apply", "--revert", str(tree)]) == 0
    assert main(["series", str(tree), "--output", str(tmp_path / "nowhere")]) == 3
    assert "is not a directory to write patches to" in capsys.readouterr().err
    assert list(tmp_path.glob("*.patch")) == []
