"""Replace a file as a whole: a reader finds what was there before or what is there now, also after a crash."""

from pathlib import Path

from mpsguard.linux.files.directory import Directory


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, for this user alone; OSError, and the file is as it was.

    After a power failure it may still be as it was: the directory is not waited for.
    """
    with Directory.make(path.parent, 0o700) as directory:
        directory.write(path.name, data, 0o600)
