"""Endpoint: a public directory and the broker that serves its sockets."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from mpsguard.guard.broker import public_sockets
from mpsguard.guard.broker.broker import Broker
from mpsguard.guard.broker.move_page import MovePage
from mpsguard.guard.broker.public_directory import Contents, PublicDirectory


class Endpoint:
    """Owns a public directory and its broker."""

    def __init__(
        self, path: Path, broker: Broker, lock: Path, *, ahead: int | None = None, page: MovePage | None = None
    ) -> None:
        """``ahead``, ``page``: see `PublicDirectory`."""
        self.path = path
        self.directory = PublicDirectory(path, lock, ahead=ahead, page=page)
        self.broker = broker
        self._is_served = False

    def serve(self) -> None:
        """Accept connections from now on."""
        self._is_served = True
        self.broker.listen(self.directory.listeners)

    def changed(self) -> str | None:
        """Return what is not as it was made, in words; None if all is. On any thread."""
        return self.directory.changed()

    def keeps_out(self) -> bool:
        """Return whether programs that start now, of any user, do not come to this guard. On any thread."""
        return not self.directory.is_reached()

    def mend(self) -> Callable[[], None]:
        """Make what is gone again, on a thread; return what remains to be done in the event loop.

        Raises:
            PublicDirectoryError: it cannot be made, or what is there is not ours.
        """
        return partial(self._take, self.directory.made_again())

    def _take(self, contents: Contents) -> None:
        unused = self.directory.replace(contents)
        if self._is_served:
            self.broker.listen(self.directory.listeners)
        for sock in unused:
            public_sockets.close(sock)
