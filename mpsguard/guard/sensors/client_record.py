"""The clients that a sensor has been told of, to compare a process named elsewhere with."""

from collections import OrderedDict
from typing import Final

from mpsguard.linux.identity import ProcessKey

_MOST_ENDED: Final = 4096
"""Ended clients that are remembered: what one of them did may be read after its end. The oldest go first."""


class ClientRecord:
    """Knows each client that is there, and those that ended last, by the process and its newest program."""

    def __init__(self) -> None:
        self._here: dict[ProcessKey, tuple[ProcessKey, float]] = {}
        self._ended: OrderedDict[ProcessKey, tuple[ProcessKey, float]] = OrderedDict()

    def came(self, client: ProcessKey, at: float) -> None:
        """Note a client that came at ``at`` (CLOCK_MONOTONIC seconds)."""
        self._ended.pop(client.process, None)
        self._here[client.process] = client, at

    def ended(self, client: ProcessKey) -> None:
        """Note its end."""
        known = self._here.get(client.process)
        if known is None or known[0] != client:
            return  # its process has executed another program, which is there
        self._ended[client.process] = self._here.pop(client.process)
        if len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)

    def knows(self, process: ProcessKey) -> bool:
        """Return whether a process is or was a client."""
        return process in self._here or process in self._ended

    def at(self, process: ProcessKey, at: float) -> ProcessKey | None:
        """Return the client that a process was at ``at``; None if it was none, or that is not known.

        A process that has executed another program since was another client then.
        """
        client, came = self._here.get(process) or self._ended.get(process) or (None, 0.0)
        if client is not None and client.execs and at < came:
            return None
        return client
