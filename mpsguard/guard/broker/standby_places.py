"""Places on the lane for standbys: a user has some there for each of its clients that writes a session.

The directory `standby` is public. Work on the standby lane shares the GPU by time slices with all work on the active
one, whatever shares and priorities say, and a fault there ends the standbys of all users. A process cannot prove that
it will only wait: whatever `mpsguard run` gives its standbys, their user could give to another program. So what is
bounded is how many processes a user brings there; those beyond it are served like clients of the domain's own
directory.
"""

import os
from collections.abc import Callable, Collection
from typing import Final

from mpsguard.guard.broker.client_table import ClientTable
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.linux.identity import Credentials, ProcessKey, is_root

_FOR_A_WRITER: Final = 2
"""Places for each client that writes a session: one for its standby, one while another one that is over still ends."""


class StandbyPlaces:
    """Decides once for each process that comes to one domain's directory for standbys."""

    def __init__(
        self,
        name: str,
        lane: Callable[[], str],
        known: ClientTable,
        writers: Callable[[], Collection[ProcessKey] | None],
        events: EventStream,
    ) -> None:
        """Create it.

        Args:
            name: of the domain.
            lane: returns the name of the lane for standbys.
            known: the domain's clients.
            writers: returns the processes that write a session of the vault; None while that is not known, after a
                start of the guard.
            events: receives processes that get no place.
        """
        self._name = name
        self._lane = lane
        self._clients = known
        self._writers = writers
        self._events = events
        self._decided: dict[ProcessKey, tuple[int, bool]] = {}
        """User of each process that has come and lives, and whether it has a place."""

    def has(self, process: ProcessKey, sender: Credentials) -> bool:
        """Return whether a process has a place, which it is given if there is one. Root, and the guard's user, has."""
        user = sender.user
        if is_root(user) or user == os.geteuid():
            return True
        self._decided = {
            key: found
            for key, found in self._decided.items()
            if key in self._clients.entering or self._clients.get(key) is not None
        }
        if process not in self._decided:
            self._decided[process] = user, self._is_free(user)
            if not self._decided[process][1]:
                detail = "its user has no client that writes a session without a standby: served on the active lane"
                told = {"pid": sender.pid, "uid": sender.uid, "detail": detail}
                self._events.publish("standby_denied", self._name, user=user, **told)
        return self._decided[process][1]

    def _is_free(self, user: int) -> bool:
        known = self._writers()
        if known is None:
            return True
        writers = {key for key in known if (client := self._clients.get(key)) is not None and client.user == user}
        return len(self._there(user) - writers) < _FOR_A_WRITER * len(writers)

    def _there(self, user: int) -> set[ProcessKey]:
        """Return a user's processes that are on the standby lane, or were given a place there."""
        name = self._lane()
        on_lane = {client.process for client in self._clients.all() if client.user == user and client.lane == name}
        return on_lane | {key for key, (of, placed) in self._decided.items() if placed and of == user}
