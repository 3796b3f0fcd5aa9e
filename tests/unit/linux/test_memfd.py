"""Memory files: what they hold, that their size is fixed, and that a failure leaves no descriptor."""

import os

import pytest

from mpsguard.linux.descriptors import memfd
from tests.harness.open_descriptors import open_descriptors, opened_since


@pytest.mark.parametrize(("size", "expected"), [(None, b"abc"), (3, b"abc"), (5, b"abc\0\0")])
def test_it_holds_the_content_and_cannot_be_resized(size: int | None, expected: bytes) -> None:
    fd = memfd.holding("test", b"abc", size)
    try:
        assert os.pread(fd, 100, 0) == expected
        for other in (0, 100):
            with pytest.raises(PermissionError):
                os.ftruncate(fd, other)
    finally:
        os.close(fd)


def test_content_that_is_too_long_leaves_no_descriptor() -> None:
    before = open_descriptors()
    with pytest.raises(OSError, match=r"."):
        memfd.holding("test", b"abc", 2)
    assert opened_since(before) == []
