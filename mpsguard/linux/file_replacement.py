"""Replace a file as a whole: whoever reads it finds what was there before or what is there now, also after a crash."""

import os
from pathlib import Path


def replace(path: Path, data: bytes) -> None:
    """Put ``data`` in the place of ``path``, on disk when this returns; OSError, and the file is as it was."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    with draft.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
