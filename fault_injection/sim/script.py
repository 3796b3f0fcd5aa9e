"""Scripted misbehaviour: what a test asks the simulated stack to do wrong.

One small JSON file per point at which the daemon or the server looks, in `sim/` inside the pipe directory. A file is
read each time its point is passed, so a test can set and clear it while the stack runs. The vendor's contract is not
touched: nothing of this is on a socket.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, Literal

Victim = Literal["daemon", "server"]

_TICK_S = 0.01


class Script:
    """The script of one pipe directory: tests write it, the simulated processes read it."""

    def __init__(self, pipe_directory: str | Path) -> None:
        self._directory = Path(pipe_directory) / "sim"

    def hang(self, command: str, *, seconds: float | None = None) -> None:
        """Let the daemon hang in a command; for ever (until cleared) without a duration."""
        self._set(f"command.{command}", until=_until(seconds))

    def hang_accept(self, *, seconds: float | None = None) -> None:
        """Let the daemon hang before it accepts the next connection."""
        self._set("accept", until=_until(seconds))

    def delay_server_start(self, seconds: float) -> None:
        """Let every new server take that long; like the vendor's, the daemon blocks for the while."""
        self._set("server-start", delay=seconds)

    def fail_server_start(self, *, killed: bool = False) -> None:
        """Let every new server exit with status 1, as on a machine without a GPU, or end by SIGKILL."""
        self._set("server-start", fail=True, killed=killed)

    def end_servers(self, *, after: float, status: int = 1) -> None:
        """Let every server that registers from now on exit by itself, that many seconds later."""
        self._set("server-life", after=after, status=status)

    def crash(self, victim: Victim, *, on: str) -> None:
        """Let the daemon or its servers die of SIGKILL when a command arrives, before it is answered."""
        self._set(f"command.{on}", crash=victim)

    def force_fault(self, *, seconds: float | None = None) -> None:
        """Let every server report FAULT and refuse new clients (807), with no fault behind it."""
        self._set("fault", until=_until(seconds))

    def notice_late(self, seconds: float) -> None:
        """Let every server take that long at least to notice a fault."""
        self._set("notice", after=seconds)

    def notices_after(self) -> float:
        """Return the seconds that a server takes at least to notice a fault."""
        return float((self.read("notice") or {}).get("after", 0.0))

    def make_unavailable(self, *, seconds: float | None = None) -> None:
        """Let every server say ACTIVE and refuse contexts with error 46, as while another GPU of its recovers."""
        self._set("unavailable", until=_until(seconds))

    def spare_crashes(self) -> None:
        """Let the kernels of ended clients end by themselves, as if their address spaces were kept."""
        self._set("spare", until=None)

    def drop_handshakes(self) -> None:
        """Let the daemon close every new connection after its hello."""
        self._set("handshake", drop=True)

    def driver(self, branch: str) -> None:
        """Let a daemon started after this behave as that branch's does (`driver.BRANCHES`)."""
        self._set("driver", branch=branch)

    def lack(self, command: str) -> None:
        """Let the daemon know nothing of a command, as an older driver's does."""
        self._set(f"lack.{command}")

    def clear(self, point: str | None = None) -> None:
        """Clear one point, or all of them; processes that hang there continue."""
        if point is None:
            for path in self._directory.glob("*.json"):
                path.unlink(missing_ok=True)
        else:
            (self._directory / f"{point}.json").unlink(missing_ok=True)

    def read(self, point: str) -> dict[str, Any] | None:
        """What is asked for at a point, if anything."""
        try:
            text = (self._directory / f"{point}.json").read_bytes()
        except OSError:
            return None
        asked: dict[str, Any] = json.loads(text)
        return asked

    def start_server(self) -> bool:
        """Take the time a server start is to take; false when it is to fail."""
        asked = self.read("server-start") or {}
        time.sleep(asked.get("delay", 0.0))
        if asked.get("killed", False):
            os.kill(os.getpid(), signal.SIGKILL)
        return not asked.get("fail", False)

    def wait(self, point: str) -> None:
        """Hang here for as long as the script says."""
        while (asked := self.read(point)) is not None and _pending(asked):
            time.sleep(_TICK_S)

    def holds(self, point: str) -> bool:
        """Whether a point is set, and its time is not over."""
        asked = self.read(point)
        return asked is not None and _pending(asked)

    def _set(self, point: str, **asked: Any) -> None:
        self._directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        fresh = self._directory / f".{point}.{os.getpid()}"
        fresh.write_text(json.dumps(asked))
        fresh.replace(self._directory / f"{point}.json")


def _until(seconds: float | None) -> float | None:
    return None if seconds is None else time.time() + seconds


def _pending(asked: dict[str, Any]) -> bool:
    if "until" not in asked:
        return False
    return asked["until"] is None or time.time() < asked["until"]
