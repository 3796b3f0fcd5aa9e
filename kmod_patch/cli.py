"""The command line, `mpsguard-kmod`."""

import argparse
import sys
from pathlib import Path

from kmod_patch import VERSION, state
from kmod_patch.errors import KmodError
from kmod_patch.patch import make_plan
from kmod_patch.tree import open_tree


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
    )
    parser.add_argument("--version", action="version", version=f"mpsguard-kmod {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    check = commands.add_parser("check", help="say whether the rules fit a driver's source tree; changes nothing")
    check.add_argument("tree", type=Path)
    check.add_argument("--diff", action="store_true", help="print what would change")
    check.set_defaults(run=_check)

    apply = commands.add_parser("apply", help="change a driver's source tree")
    apply.add_argument("tree", type=Path)
    apply.add_argument("--revert", action="store_true", help="go back to stock")
    apply.set_defaults(run=_apply)
    return parser


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
