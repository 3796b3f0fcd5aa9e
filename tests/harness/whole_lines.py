"""Files of lines that a living process writes: what is there of its last line may be half of it."""

from pathlib import Path


def whole_lines(path: Path) -> list[str]:
    """Return the lines that are complete; none of a file that is not there yet."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return text[: text.rfind("\n") + 1].splitlines()
