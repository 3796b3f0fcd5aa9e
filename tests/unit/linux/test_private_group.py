"""Private groups: a group-writable directory is its owner's alone only if no other user can be in the group."""

from __future__ import annotations

import grp
import os
import pwd
import tempfile
from pathlib import Path

import pytest

from mpsguard.linux.files import private_group
from mpsguard.linux.files.directory import Directory
from mpsguard.linux.files.private_group import is_private_group

ANN = pwd.struct_passwd(("ann", "x", 1000, 1000, "", "/home/ann", "/bin/sh"))
BOB = pwd.struct_passwd(("bob", "x", 1001, 1001, "", "/home/bob", "/bin/sh"))


def group(name: str, gid: int, *members: str) -> grp.struct_group:
    return grp.struct_group((name, "x", gid, list(members)))


def account(name: str, uid: int, gid: int) -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", uid, gid, "", "/", "/bin/sh"))


@pytest.mark.parametrize(
    ("of", "accounts", "private"),
    [
        (group("ann", 1000), [ANN, BOB], True),
        (group("ann", 1000, "ann"), [ANN, BOB], True),
        # A directory service that lists no accounts.
        (group("ann", 1000), [], True),
        # Two names of one account.
        (group("ann", 1000), [ANN, account("admin", 1000, 1000)], True),
        (group("ann", 1000, "bob"), [ANN, BOB], False),
        (group("ann", 1000, "ann", "bob"), [ANN, BOB], False),
        (group("ann", 1000), [ANN, account("carl", 1002, 1000)], False),
        # `users` of openSUSE, a group of a project, and one that happens to have the name.
        (group("users", 1000), [ANN], False),
        (group("project", 5000, "ann"), [ANN], False),
        (group("ann", 5000), [ANN], False),
    ],
)
def test_only_the_owner_may_be_in_it(of: grp.struct_group, accounts: list[pwd.struct_passwd], *, private: bool) -> None:
    assert is_private_group(ANN, of, accounts) is private


def test_what_the_database_does_not_know_is_not_private() -> None:
    known = {each.pw_uid for each in pwd.getpwall()} | {each.gr_gid for each in grp.getgrall()}
    unknown = next(number for number in range(60000, 65000) if number not in known)
    assert not private_group.is_private(unknown, unknown)
    assert not private_group.is_private(0, unknown)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize(("gid", "mode", "allowed"), [(34, 0o775, True), (12345, 0o775, False), (34, 0o777, False)])
def test_a_directory_that_umask_0002_has_made(gid: int, mode: int, *, allowed: bool) -> None:
    """`backup`, which each Debian has, with a group of its name."""
    if not private_group.is_private(34, 34):
        pytest.skip("no account 34 with a private group")
    # Not below pytest's own directory, which is root's alone.
    with tempfile.TemporaryDirectory() as above:
        Path(above).chmod(0o755)
        directory = Path(above) / "mps"
        directory.mkdir()
        directory.chmod(mode)
        os.chown(directory, 34, gid)
        os.seteuid(34)
        try:
            if allowed:
                Directory.open(directory).close()
            else:
                with pytest.raises(PermissionError, match="other users may write"):
                    Directory.open(directory)
        finally:
            os.seteuid(0)
