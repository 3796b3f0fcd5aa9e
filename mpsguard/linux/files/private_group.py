"""Whether a group is the private group of one user: the group that distributions make with each account.

The user alone may then write where the group may. The account database tells, as it does for Debian's sshd and
`authorized_keys` (user-group-modes.patch). A directory service may not list all accounts, so the group's name must be
the user's, too, as `useradd -U` makes it and pam_umask asks (usergroups).
"""

import grp
import pwd
from collections.abc import Iterable

Account = pwd.struct_passwd
Group = grp.struct_group


def is_private(uid: int, gid: int) -> bool:
    """Return whether ``gid`` is the private group of ``uid``; False where the database knows one of them not."""
    try:
        return is_private_group(pwd.getpwuid(uid), grp.getgrgid(gid), pwd.getpwall())
    except KeyError:
        return False


def is_private_group(owner: Account, group: Group, accounts: Iterable[Account]) -> bool:
    """Return whether ``owner`` is the only member of ``group``, which is the owner's primary group and has its name.

    Args:
        owner: the user.
        group: the group.
        accounts: all that the database lists; one more that has the group as its primary group is a member.
    """
    named = group.gr_name == owner.pw_name and owner.pw_gid == group.gr_gid
    listed = set(group.gr_mem) <= {owner.pw_name}
    return named and listed and all(each.pw_uid == owner.pw_uid for each in accounts if each.pw_gid == group.gr_gid)
