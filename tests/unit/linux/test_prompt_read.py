"""Reading without waiting for a writer, on file systems that know the flag and on those that do not."""

from pathlib import Path

import pytest

from mpsguard.linux.files import prompt_read


@pytest.mark.parametrize("directory", [None, Path("/dev/shm")])
def test_a_file_is_read_as_by_pread(directory: Path | None, tmp_path: Path) -> None:
    path = (directory or tmp_path) / f"{tmp_path.name}-content"
    content = bytes(range(256)) * 100
    path.write_bytes(content)
    try:
        with path.open("rb") as file:
            for size, offset in ((len(content), 0), (10, 20), (1000, len(content) - 3), (5, len(content)), (0, 0)):
                assert prompt_read.read(file.fileno(), size, offset) == content[offset : offset + size]
    finally:
        path.unlink()
