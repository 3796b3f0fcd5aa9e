"""Replace a file as a whole: a reader finds what was there before or what is there now, also after a crash."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``; OSError, and the file is as it was.

    After a power failure it may still be as it was: the directory is not waited for.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
