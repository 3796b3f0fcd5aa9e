"""A driver's source tree: where it is, which version, and what differs between branches that our C file must know."""

import re
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch.errors import TreeError

BRANCHES: Final = ("535", "550", "570", "575", "580", "590", "595")
_VERSION: Final = re.compile(r'-DNV_VERSION_STRING=\\"(\d+\.[\d.]+)\\"')


class Tree(msgspec.Struct, frozen=True):
    """A tree as DKMS and Debian's nvidia-open-kernel-source have it; `kernel-open` of the vendor's repository."""

    root: Path
    version: str

    @property
    def branch(self) -> str:
        """Its first number."""
        return self.version.split(".")[0]

    @property
    def uvm(self) -> Path:
        """Where nvidia-uvm lies."""
        return self.root / "nvidia-uvm"


class Feature(msgspec.Struct, frozen=True):
    """One thing that differs between branches; it gets the first form with a pattern that is in the file."""

    macro: str
    file: str
    forms: tuple[tuple[str, str], ...]
    """Patterns (with DOTALL), and what the macro is then."""


FEATURES: Final = (
    Feature(
        "UVM_ISOLATION_EXTERNAL(va_range)",
        "uvm_va_range.h",
        (
            (r"\buvm_va_range_to_external\b", "uvm_va_range_to_external(va_range)"),
            (r"\buvm_va_range_external_t external;", "(va_range)"),
        ),
    ),
    Feature(
        "UVM_ISOLATION_HAS_SPARSE(parent_gpu)",
        "uvm_gpu.h",
        (
            (r"\bbool sparse_mappings_supported;", "((parent_gpu)->sparse_mappings_supported)"),
            # Where the field is gone, Turing is the oldest GPU there is, and has them.
            (r"\bstruct uvm_parent_gpu_struct\b", "true"),
        ),
    ),
    Feature(
        "UVM_ISOLATION_PASS(parent_gpu)",
        "uvm_gpu.h",
        (
            (
                r"\buvm_fault_buffer_info_t fault_buffer_info;",
                "((parent_gpu)->fault_buffer_info.replayable.batch_service_context.batch_id)",
            ),
            (
                r"\buvm_fault_buffer_t fault_buffer;",
                "((parent_gpu)->fault_buffer.replayable.batch_service_context.batch_id)",
            ),
        ),
    ),
    Feature(
        "UVM_ISOLATION_IS_SUBCTX_OF(subctx, owner)",
        "uvm_user_channel.h",
        (
            (
                r"uvm_gpu_va_space_t \*gpu_va_space;[^}]*\} \*subctxs;",
                "((subctx)->gpu_va_space == (owner))",
            ),
            (r"uvm_va_space_t \*va_space;[^}]*\} \*subctxs;", "((subctx)->va_space == (owner)->va_space)"),
        ),
    ),
    *(
        Feature(
            f"UVM_ISOLATION_ISR_{action.upper()}(parent_gpu)",
            "uvm_gpu_isr.h",
            tuple(
                (
                    rf"\b{prefix}_replayable_faults_isr_{action}\(",
                    f"{prefix}_replayable_faults_isr_{action}(parent_gpu)",
                )
                for prefix in ("uvm_parent_gpu", "uvm_gpu")
            ),
        )
        for action in ("lock", "unlock")
    ),
)


def open_tree(path: Path) -> Tree:
    """Find the tree at `path`, or in its `kernel-open`; raises TreeError."""
    for root in (path, path / "kernel-open"):
        kbuild = root / "Kbuild"
        if not (root / "nvidia-uvm" / "nvidia-uvm-sources.Kbuild").is_file() or not kbuild.is_file():
            continue
        found = _VERSION.search(kbuild.read_text(encoding="utf-8", errors="replace"))
        if found is None:
            raise TreeError(f"{kbuild}: names no driver version (NV_VERSION_STRING)")
        tree = Tree(root.resolve(), found[1])
        if tree.branch not in BRANCHES:
            known = ", ".join(BRANCHES)
            raise TreeError(f"{root}: driver {tree.version} is of branch {tree.branch}; known are {known}")
        return tree
    raise TreeError(
        f"{path}: no driver source tree (nvidia-uvm/nvidia-uvm-sources.Kbuild and Kbuild, here or in kernel-open)"
    )


def branch_header(tree: Tree, version: str) -> str:
    """uvm_fault_isolation_branch.h for this tree; raises TreeError if it is like none of the branches known."""
    forms = [f"#define {macro} {form}" for macro, form in branch_forms(tree)]
    lines = [
        "/* SPDX-License-Identifier: MIT OR GPL-2.0 */",
        f"/* Written by mpsguard-kmod for driver {tree.version}. */",
        "#ifndef __UVM_FAULT_ISOLATION_BRANCH_H__",
        "#define __UVM_FAULT_ISOLATION_BRANCH_H__",
        f'#define UVM_ISOLATION_VERSION "{version}"',
    ]
    return "\n".join([*lines, *forms, "#endif", ""])


def branch_forms(tree: Tree) -> list[tuple[str, str]]:
    """Each macro, and its form for this tree; raises TreeError if the tree is like none of the branches known."""
    forms = []
    for feature in FEATURES:
        path = tree.uvm / feature.file
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise TreeError(f"{path}: {error.strerror}") from None
        form = next((form for pattern, form in feature.forms if re.search(pattern, text, re.DOTALL)), None)
        if form is None:
            raise TreeError(f"{path}: {feature.macro.split('(')[0]} has none of the forms known")
        forms.append((feature.macro, form))
    return forms
