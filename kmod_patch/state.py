"""Applying a plan to a tree, taking it back, and telling which of the two a tree is.

`.mpsguard-kmod/` in the tree holds the stock texts and a record with the digest of every file as it was left. It is
written before the first file changes and removed after the last one is back, so that a run that is cut short is
recognised: the record is there, and a file is neither.
"""

import hashlib
import os
import shutil
from pathlib import Path
from typing import Final, Literal

import msgspec

from kmod_patch import VERSION
from kmod_patch.errors import HalfPatchedError, TreeError
from kmod_patch.patch import BRANCH_HEADER, OWN_FILES, Plan
from kmod_patch.rules import RULES
from kmod_patch.tree import Tree

RECORD: Final = ".mpsguard-kmod"
TRACES: Final = ("uvm_fault_isolation", "uvm_fault_report")
"""One of them is in every line that this change adds."""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was done to a tree."""

    version: str
    """Of this change."""
    driver: str
    stock: dict[str, str]
    """Digest of each file of nvidia-uvm/ as it was; "" if it was not there."""
    patched: dict[str, str]


Condition = Literal["stock", "patched"]


def condition(tree: Tree) -> tuple[Condition, Record | None]:
    """Whether the tree is stock or patched by this tool; raises HalfPatchedError if it is neither."""
    record = _record(tree)
    if record is None:
        _require_no_trace(tree)
        return "stock", None
    for name, digest in record.patched.items():
        if _digest(tree.uvm / name) != digest:
            raise HalfPatchedError(
                f"{tree.uvm / name}: differs from what was applied; "
                f"`mpsguard-kmod apply --revert {tree.root}` goes back to stock"
            )
    return "patched", record


def apply(plan: Plan) -> None:
    """Write the plan into its stock tree; if that fails midway, the tree is put back."""
    tree = plan.tree
    keep = tree.root / RECORD
    fresh = tree.root / f"{RECORD}.new"
    record = Record(
        version=VERSION,
        driver=tree.version,
        stock={name: _digest_of(text) if text else "" for name, text in plan.before.items()},
        patched={name: _digest_of(text) for name, text in plan.after.items()},
    )
    try:
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        for name, text in plan.before.items():
            if text:
                (fresh / name).write_text(text, encoding="utf-8")
        (fresh / "record.json").write_bytes(msgspec.json.encode(record))
        fresh.rename(keep)
    except OSError as error:
        shutil.rmtree(fresh, ignore_errors=True)
        raise TreeError(f"{keep}: {error.strerror}") from None
    try:
        for name, text in plan.after.items():
            _replace(tree.uvm / name, text)
    except OSError as error:
        revert(tree)
        raise TreeError(f"{tree.uvm / str(error.filename)}: {error.strerror}; the tree is as it was") from None


def revert(tree: Tree) -> None:
    """Back to stock, from any state between; raises TreeError if a file cannot be written, and can be run again."""
    record = _record(tree)
    if record is None:
        _require_no_trace(tree)
        return
    try:
        for name, digest in record.stock.items():
            path = tree.uvm / name
            if not digest:
                path.unlink(missing_ok=True)
            elif _digest(path) != digest:
                _replace(path, (tree.root / RECORD / name).read_text(encoding="utf-8"))
        shutil.rmtree(tree.root / RECORD)
    except OSError as error:
        raise TreeError(f"{error.filename}: {error.strerror}; run it again") from None


def _record(tree: Tree) -> Record | None:
    path = tree.root / RECORD / "record.json"
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TreeError(f"{path}: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise HalfPatchedError(f"{path}: {error}; unpack the driver's sources again") from None


def _require_no_trace(tree: Tree) -> None:
    """Without a record nothing of ours may be there: what it was before is not known."""
    for name in dict.fromkeys([*(rule.file for rule in RULES), *OWN_FILES, BRANCH_HEADER]):
        path = tree.uvm / name
        if not path.exists():
            continue
        text = path.read_text(errors="replace")
        if name in {*OWN_FILES, BRANCH_HEADER} or any(trace in text for trace in TRACES):
            raise HalfPatchedError(
                f"{path}: is changed already, and {tree.root / RECORD} does not say from what; "
                "unpack the driver's sources again"
            )


def _replace(path: Path, text: str) -> None:
    """All or nothing, with the mode that the file has."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text, encoding="utf-8")
    fresh.chmod(mode)
    os.replace(fresh, path)  # noqa: PTH105 - the name says that it replaces


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def _digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
