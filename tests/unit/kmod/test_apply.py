"""check and apply: a tree changes as a whole or not at all, and goes back; what is wrong with one is said in a line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kmod_patch import VERSION, state
from kmod_patch.cli import main
from kmod_patch.patch import make_plan
from kmod_patch.rules import RULES
from kmod_patch.tree import open_tree
from tests.unit.kmod import trees

pytestmark = pytest.mark.skipif(shutil.which("spatch") is None, reason="Coccinelle (spatch) is not installed")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return trees.make(tmp_path / "tree")


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit status and the one line that says why."""
    status = main(arguments)
    (line,) = capsys.readouterr().err.splitlines()
    return status, line


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_check_changes_nothing(tree: Path) -> None:
    before = trees.contents(tree)
    assert main(["check", str(tree)]) == 0
    assert main(["check", "--diff", str(tree)]) == 0
    assert trees.contents(tree) == before


def test_every_rule_applies_as_often_as_it_says(tree: Path) -> None:
    plan = make_plan(open_tree(tree))
    assert len(plan.matches) == sum(place.count for rule in RULES for place in rule.places)
    assert {match.rule for match in plan.matches} == {rule.name for rule in RULES}


def test_only_what_is_matched_is_hooked(tree: Path) -> None:
    plan = make_plan(open_tree(tree))
    whole = plan.after["uvm_gpu_replayable_faults.c"]
    assert "uvm_fault_isolation" not in whole[whole.index("cancel_everything") :]
    # Of the two in the function that is hooked, not the one for what no entry in a page table cures.
    assert whole[: whole.index("cancel_fault_precise_va(fault, ALL)")].count("uvm_fault_isolation_contain(") == 0


def test_apply_and_revert(tree: Path) -> None:
    before = trees.contents(tree)
    assert main(["apply", str(tree)]) == 0
    assert "uvm_fault_isolation_contain(" in (tree / "nvidia-uvm/uvm_gpu_replayable_faults.c").read_text()
    assert f'"{VERSION}"' in (tree / "nvidia-uvm/uvm_fault_isolation_branch.h").read_text()
    patched = trees.contents(tree)
    assert main(["apply", str(tree)]) == 0
    assert trees.contents(tree) == patched
    assert main(["check", str(tree)]) == 0
    assert main(["apply", "--revert", str(tree)]) == 0
    assert trees.contents(tree) == before
    assert main(["apply", "--revert", str(tree)]) == 0


def test_the_repository_s_layout_is_found(tmp_path: Path) -> None:
    trees.make(tmp_path / "clone" / "kernel-open")
    assert main(["check", str(tmp_path / "clone")]) == 0


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_that_matches_nothing_is_named(tree: Path, rule: object, capsys: pytest.CaptureFixture[str]) -> None:
    """The text that it looks for is taken away: rule, file and function are in the line, and nothing is touched."""
    broken = {
        "declarations": ("uvm_va_block_types.h", "other.h"),
        "va-space-state": ("deferred_release_q_item", "other_item"),
        "gpu-va-space-state": ("uvm_ats_gpu_va_space_t ats", "int ats"),
        "va-space-is-handed-out": ("*out = space", "give(out, space)"),
        "va-space-is-freed": ("uvm_kvfree(space->mapping)", "kfree(space->mapping)"),
        "page-tree-is-freed": ("uvm_page_tree_deinit(&", "other_deinit(&"),
        "sm-fault-is-fatal": ("fault->replayable.cancel_va_mode", "fault->mode"),
        "fatal-va-space-is-chosen": ("static void mark_fault_fatal", "static void other_name"),
        "sink-beyond-cpu": ("uvm_gpu_can_address(tree", "other(tree"),
        "copy-engine-fault-is-fatal": ("clear_faulted_on_gpu", "other"),
        "new-range": ("NV_STATUS uvm_va_range_create_mmap", "NV_STATUS other_name"),
        "new-mapping": ("uvm_map_external_sparse_on_gpu", "other_name"),
        "new-hmm-block": ("uvm_va_block_create(space, block)", "other(space, block)"),
        "test-is-offered": ("UVM_TEST_RNG_SANITY", "UVM_TEST_ELSE"),
        "new-channel": ("disallow_new_channels", "other_name"),
        "list-is-made": ("UVM_PROC_DIR_NAME", "OTHER_NAME"),
        "list-is-removed": ("proc_remove(directory)", "other(directory)"),
    }
    assert {each.name for each in RULES} == set(broken)
    (chosen,) = (each for each in RULES if each is rule)
    old, new = broken[chosen.name]
    replace(tree / "nvidia-uvm" / chosen.file, old, new)
    before = trees.contents(tree)
    status, line = refused(["apply", str(tree)], capsys)
    assert status == 4
    assert f"rule {chosen.name}: " in line
    assert chosen.file in line
    assert any(name in line for place in chosen.places for name in (*place.names, "its head") if name)
    assert trees.contents(tree) == before


def test_a_rule_that_matches_once_too_often_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tree / "nvidia-uvm" / "uvm_va_range.c"
    path.write_text(path.read_text() + trees.RANGE_C.replace("uvm_va_range_create_mmap", "one_more").split("\n\n")[1])
    before = trees.contents(tree)
    status, line = refused(["apply", str(tree)], capsys)
    assert status == 4
    assert "rule new-range" in line
    assert "one_more: matches 1 times, must be 0" in line
    assert trees.contents(tree) == before


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("Kbuild", "nothing\n", (3, "no driver version")),
        ("Kbuild", 'x += -DNV_VERSION_STRING=\\"470.1\\"\n', (3, "branch 470; known are 535, 550")),
        ("nvidia-uvm/uvm_gpu.h", "nothing\n", (3, "HAS_SPARSE has none of the forms known")),
        ("nvidia-uvm/uvm_hmm.c", None, (3, "No such file")),
        ("nvidia-uvm/nvidia-uvm-sources.Kbuild", None, (3, "no driver source tree")),
        ("nvidia-uvm/uvm_fault_isolation.c", "ours\n", (5, "unpack the driver's sources again")),
        ("nvidia-uvm/uvm_hmm.c", "/* uvm_fault_isolation */\n", (5, "is changed already")),
        ("nvidia-uvm/uvm_procfs.c", "/* uvm_fault_report */\n", (5, "is changed already")),
        (".mpsguard-kmod/record.json", "{", (5, "unpack the driver's sources again")),
    ],
)
def test_a_wrong_tree_is_left_as_it_was(
    tree: Path, name: str, text: str | None, expected: tuple[int, str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / name
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    before = trees.contents(tree)
    status, line = refused(["apply", str(tree)], capsys)
    assert (status, expected[1] in line) == (expected[0], True), line
    assert trees.contents(tree) == before


def test_no_tree_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = refused(["check", str(tmp_path / "nowhere")], capsys)
    assert status == 3
    assert "no driver source tree" in line


def test_a_file_changed_after_the_patch_is_half_patched(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trees.contents(tree)
    assert main(["apply", str(tree)]) == 0
    replace(tree / "nvidia-uvm/uvm_hmm.c", "uvm_mutex_unlock", "other_unlock")
    status, line = refused(["apply", str(tree)], capsys)
    assert status == 5
    assert "uvm_hmm.c: differs from what was applied" in line
    assert main(["apply", "--revert", str(tree)]) == 0
    assert trees.contents(tree) == before


def test_a_run_that_was_cut_short_is_recognised_and_undone(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trees.contents(tree)
    assert main(["apply", str(tree)]) == 0
    # As if it had been killed before its last file.
    (tree / "nvidia-uvm/uvm_user_channel.c").write_text(trees.CHANNEL_C, encoding="utf-8")
    assert refused(["check", str(tree)], capsys)[0] == 5
    assert main(["apply", "--revert", str(tree)]) == 0
    assert trees.contents(tree) == before


def test_a_write_that_fails_midway_is_taken_back(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trees.contents(tree)
    plan = make_plan(open_tree(tree))
    last = max(plan.after)
    # A directory where the new text of one file would be written first.
    (tree / "nvidia-uvm" / f".{last}.new").mkdir()
    status, line = refused(["apply", str(tree)], capsys)
    assert status == 3
    assert "the tree is as it was" in line
    (tree / "nvidia-uvm" / f".{last}.new").rmdir()
    assert trees.contents(tree) == before
    assert state.condition(open_tree(tree))[0] == "stock"


def test_without_coccinelle(tree: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    status, line = refused(["check", str(tree)], capsys)
    assert status == 6
    assert "coccinelle" in line
