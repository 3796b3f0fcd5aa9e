"""What Prometheus does meanwhile: asks for the metrics once a second."""

import threading
import urllib.error
import urllib.request
from types import TracebackType
from typing import Final, Self

_EVERY: Final = 1.0
_WITHIN: Final = 5.0
"""Seconds for an answer."""


class Scraper:
    """A thread that asks on and on; its owner reads the counts."""

    def __init__(self, port: int) -> None:
        self.count = 0
        self.failed: list[str] = []
        self._address = f"http://127.0.0.1:{port}/metrics"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scraper", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(2 * _WITHIN)

    def _run(self) -> None:
        while not self._over.wait(_EVERY):
            self.count += 1
            try:
                with urllib.request.urlopen(self._address, timeout=_WITHIN) as answer:
                    text = answer.read().decode()
                if "mpsguard_build_info" not in text:
                    self.failed.append("an answer without mpsguard_build_info")
            except (OSError, urllib.error.URLError) as error:
                self.failed.append(str(error))
