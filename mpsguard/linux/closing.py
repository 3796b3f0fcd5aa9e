"""What is closed at the end of a ``with`` block."""

from typing import Self


class Closing:
    """Base of owners: a ``with`` block gives the owner, and closes it at its end, however it ends."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what is owned."""
        raise NotImplementedError
