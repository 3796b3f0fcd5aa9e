"""The command line, `mpsguard-kmod`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

import msgspec

from kmod_patch import VERSION, dkms, loaded, state
from kmod_patch.build import build
from kmod_patch.errors import KernelError, KmodError, ToolError, TreeError
from kmod_patch.kernel import Headers, Key, find_headers, require_loadable, running_release, why_only_signed
from kmod_patch.patch import make_plan
from kmod_patch.series import series
from kmod_patch.tree import open_tree

STATUS_OF: Final = {"ours": 0, "stock": 10, "not loaded": 11}
"""Exit statuses of `status`."""


def main(arguments: list[str] | None = None) -> int:
    """Do what is asked; returns the exit status."""
    parsed = _parser().parse_args(arguments)
    try:
        status: int = parsed.run(parsed)
    except KmodError as error:
        print(f"mpsguard-kmod: {error}", file=sys.stderr)  # noqa: T201
        return error.status
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mpsguard-kmod",
        description="nvidia-uvm with fault isolation: a client's memory fault stays with the client.",
        epilog="TREE is a driver's source tree, as DKMS has it in /usr/src.",
    )
    parser.add_argument("--version", action="version", version=f"mpsguard-kmod {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="say whether every rule fits a driver's source tree; changes nothing")
    check.add_argument("tree", type=Path, metavar="TREE")
    check.add_argument("--diff", action="store_true", help="print what would change")
    check.set_defaults(run=_check)

    patches = commands.add_parser("series", help="write the change as patches for a driver's source tree that is stock")
    patches.add_argument("tree", type=Path, metavar="TREE")
    patches.add_argument("--output", type=Path, default=Path(), help="directory for the patches (default: here)")
    patches.set_defaults(run=_series)

    apply = commands.add_parser("apply", help="change a driver's source tree")
    apply.add_argument("tree", type=Path, metavar="TREE")
    apply.add_argument("--revert", action="store_true", help="go back to stock")
    apply.set_defaults(run=_apply)

    make = commands.add_parser("build", help="build the patched nvidia-uvm; the tree is not written to")
    make.add_argument("tree", type=Path, metavar="TREE")
    make.add_argument("--output", type=Path, default=Path(), help="directory for nvidia-uvm.ko (default: here)")
    _add_kernel(make)
    make.add_argument("--key", type=Path, help="private key to sign the module with")
    make.add_argument("--cert", type=Path, help="its certificate")
    make.set_defaults(run=_build)

    package = commands.add_parser(
        "dkms", help="build and install it as a DKMS package beside the driver's own; DKMS signs"
    )
    package.add_argument("tree", type=Path, metavar="TREE", nargs="?")
    package.add_argument("--remove", action="store_true", help="go back to the stock module")
    package.add_argument("--root", type=Path, default=Path("/"), help="for an image: where its / is")
    _add_kernel(package)
    package.set_defaults(run=_dkms)

    status = commands.add_parser("status", help="say whether the loaded nvidia-uvm is ours (0), stock (10), none (11)")
    status.add_argument("--json", action="store_true")
    status.set_defaults(run=_status)
    return parser


def _add_kernel(command: argparse.ArgumentParser) -> None:
    command.add_argument("--kernel", metavar="RELEASE", help="release of the kernel (default: the running one)")
    command.add_argument(
        "--headers", type=Path, metavar="DIR", help="its headers (default: /lib/modules/RELEASE/build)"
    )


def _say(text: str) -> None:
    print(text)  # noqa: T201


def _check(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    what, record = state.condition(tree)
    if record is not None:
        _say(f"{tree.root}: driver {tree.version}, {what}, version {record.version}")
        return 0
    plan = make_plan(tree)
    if arguments.diff:
        _say(plan.diff().rstrip("\n"))
        return 0
    _say(f"{tree.root}: driver {tree.version}, stock; every rule fits")
    for match in plan.matches:
        _say(f"  {match.rule}: {match.file}: {match.function or 'head'}")
    return 0


def _series(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    if state.condition(tree)[0] != "stock":
        raise TreeError(f"{tree.root}: is patched; `mpsguard-kmod apply --revert {tree.root}` goes back to stock")
    if not arguments.output.is_dir():
        raise TreeError(f"{arguments.output}: is not a directory to write patches to")
    for patch in series(tree):
        path = arguments.output / patch.name
        try:
            path.write_text(patch.text, encoding="utf-8")
        except OSError as error:
            raise TreeError(f"{path}: {error.strerror}") from None
        _say(str(path))
    return 0


def _apply(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    if arguments.revert:
        state.revert(tree)
        _say(f"{tree.root}: driver {tree.version}, stock")
        return 0
    what, record = state.condition(tree)
    if record is None:
        state.apply(make_plan(tree))
        _say(f"{tree.root}: driver {tree.version}, patched, version {VERSION}")
    elif record.version == VERSION:
        _say(f"{tree.root}: driver {tree.version}, {what} already")
    else:
        state.revert(tree)
        state.apply(make_plan(tree))
        _say(f"{tree.root}: driver {tree.version}, patched, version {VERSION} instead of {record.version}")
    return 0


def _build(arguments: argparse.Namespace) -> int:
    tree = open_tree(arguments.tree)
    headers, key = _kernel(arguments)
    _say(f"{build(tree, headers, arguments.output, key)}: driver {tree.version}, kernel {headers.release}")
    return 0


def _dkms(arguments: argparse.Namespace) -> int:
    layout = dkms.Layout(arguments.root)
    if arguments.root == Path("/") and os.geteuid() != 0:
        raise ToolError("dkms: needs root")
    if arguments.remove:
        gone = dkms.remove(layout)
        _say(f"removed: {', '.join(gone)}" if gone else "nothing of ours is installed")
        return 0
    if arguments.tree is None:
        raise ToolError("dkms: names no TREE, and is not asked to --remove")
    tree = open_tree(arguments.tree)
    headers = find_headers(arguments.kernel or running_release(), arguments.headers)
    _say(f"{dkms.NAME}/{dkms.install(tree, headers, layout)}: installed for kernel {headers.release}")
    if (why := why_only_signed()) is not None:
        _say(f"signed modules only are loaded, for {why}: DKMS has signed it with its own key; enrol that one")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    found = loaded.read()
    if arguments.json:
        _say(msgspec.json.encode(found).decode())
    else:
        _say(found.summary)
        for name, value in found.parameters.items():
            _say(f"  {name} = {value}")
    return STATUS_OF[found.state]


def _kernel(arguments: argparse.Namespace) -> tuple[Headers, Key | None]:
    if (arguments.key is None) != (arguments.cert is None):
        raise KernelError("--key and --cert go together")
    key = None if arguments.key is None else Key(arguments.key, arguments.cert)
    release = arguments.kernel or running_release()
    require_loadable(release, key, why_only_signed())
    return find_headers(release, arguments.headers), key
