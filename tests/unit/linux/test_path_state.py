"""What a path was and is, and what is to be done."""

from __future__ import annotations

import stat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsguard.linux.files.path_state import PathState, Repair, change, decide

MADE = PathState(1, 2, stat.S_IFSOCK | 0o666, 0, 0)


def other(**changes: int) -> PathState:
    return msgspec.structs.replace(MADE, **changes)


@pytest.mark.parametrize(
    ("found", "is_served", "repair"),
    [
        (MADE, False, Repair.NOTHING),
        (MADE, True, Repair.NOTHING),
        (None, False, Repair.MAKE),
        (other(mode=stat.S_IFSOCK | 0o600), False, Repair.RESTORE),
        (other(uid=1), False, Repair.RESTORE),
        (other(gid=1), True, Repair.RESTORE),
        (other(inode=3), False, Repair.MAKE),
        (other(device=3), False, Repair.MAKE),
        (other(inode=3), True, Repair.LEAVE),
        (other(inode=3, mode=stat.S_IFREG | 0o666), False, Repair.LEAVE),
        (other(inode=3, mode=stat.S_IFLNK | 0o777), False, Repair.LEAVE),
        (other(inode=3, mode=stat.S_IFDIR | 0o711), False, Repair.LEAVE),
    ],
)
def test_what_is_to_be_done(found: PathState | None, is_served: bool, repair: Repair) -> None:
    assert decide(MADE, found, is_served=is_served) is repair


STATES = st.builds(
    PathState,
    device=st.integers(1, 2),
    inode=st.integers(1, 2),
    mode=st.sampled_from([stat.S_IFSOCK | 0o666, stat.S_IFSOCK | 0o600, stat.S_IFDIR | 0o711]),
    uid=st.integers(0, 1),
    gid=st.integers(0, 1),
)


@given(STATES, st.none() | STATES, st.booleans())
def test_something_is_done_or_left_exactly_where_there_is_something_to_tell(
    expected: PathState, found: PathState | None, is_served: bool
) -> None:
    repair = decide(expected, found, is_served=is_served)
    assert (repair is Repair.NOTHING) == (change(expected, found) is None)
    # What another process serves, or is no such thing, is never made again in its place.
    if repair is Repair.MAKE and found is not None:
        assert not is_served
        assert found.kind == expected.kind
