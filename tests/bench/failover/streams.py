"""What network clients of a token server see: answers as bytes, and when each piece of them came."""

import itertools
import json
import random
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Final

from tests.bench.core.errors import SuiteError

PROMPT: Final = 32
KINDS: Final = 12
"""Different requests; each is asked again and again."""
VOCABULARY: Final = 256
"""Tokens of prompts are below it: every model has those."""
PATIENCE: Final = 60.0
"""Seconds that a client waits for the next piece."""


@dataclass
class Answer:
    """One request's answer."""

    kind: int
    asked: int
    """ns of CLOCK_MONOTONIC."""
    body: bytes = b""
    came: list[int] = field(default_factory=list)
    """When pieces came, ns."""
    error: str = ""


def request(kind: int, tokens: int) -> bytes:
    """The request of that kind as bytes: always the same."""
    chance = random.Random(kind)
    prompt = [chance.randrange(VOCABULARY) for _ in range(PROMPT)]
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "seed": kind}).encode()
    return b"POST /generate HTTP/1.1\r\nHost: suite\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


def ask(address: tuple[str, int], kind: int, tokens: int, answer: Answer) -> None:
    """Ask, and take in the answer until its end; what goes wrong is in ``answer.error``."""
    try:
        with socket.create_connection(address, PATIENCE) as connection:
            connection.settimeout(PATIENCE)
            connection.sendall(request(kind, tokens))
            while piece := connection.recv(65536):
                answer.came.append(time.monotonic_ns())
                answer.body += piece
    except OSError as error:
        answer.error = f"{type(error).__name__}: {error}"


class Streams:
    """Clients of one server that ask one request after the other, each on a thread, until the block ends."""

    def __init__(self, address: tuple[str, int], count: int, tokens: int) -> None:
        self._address = address
        self._tokens = tokens
        self._next = 0
        self._over = threading.Event()
        self._lock = threading.Lock()
        self.answers: list[Answer] = []
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ask no more, and take in what is under way; SuiteError if that does not end."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE * 2)
            if thread.is_alive():
                raise SuiteError("an answer does not end")

    def _run(self) -> None:
        while not self._over.is_set():
            with self._lock:
                answer = Answer(self._next % KINDS, time.monotonic_ns())
                self._next += 1
                self.answers.append(answer)
            ask(self._address, answer.kind, self._tokens, answer)

    def pieces(self) -> list[int]:
        """When anything came, ns, in order."""
        with self._lock:
            answers = list(self.answers)
        return sorted(at for answer in answers for at in list(answer.came))

    def longest_silence(self, since: int, until: int) -> int:
        """The longest time, in ns, that an answer which was under way at ``since`` said nothing before ``until``."""
        longest = 0
        with self._lock:
            answers = list(self.answers)
        for answer in answers:
            came = [at for at in list(answer.came) if at <= until]
            if not came or came[0] > since or came[-1] < since:
                continue
            longest = max(longest, max((b - a for a, b in itertools.pairwise(came) if b > since), default=0))
        return longest


def reference(address: tuple[str, int], tokens: int) -> dict[int, bytes]:
    """Return the answer to each kind of request, from an undisturbed server. Raises SuiteError."""
    bodies = {}
    for kind in range(KINDS):
        answer = Answer(kind, time.monotonic_ns())
        ask(address, kind, tokens, answer)
        if answer.error or not answer.body.endswith(b"0\r\n\r\n"):
            raise SuiteError(f"the reference was not made: {answer.error or 'the answer has no end'}")
        bodies[kind] = answer.body
    return bodies


def compare(answers: list[Answer], expected: dict[int, bytes]) -> tuple[int, int, list[str]]:
    """How many answers are as expected, of how many; and what is wrong with the others."""
    wrong = []
    for answer in answers:
        if answer.error:
            wrong.append(f"request {answer.kind}: {answer.error}")
        elif answer.body != expected[answer.kind]:
            at = next(
                (i for i, (a, b) in enumerate(zip(answer.body, expected[answer.kind], strict=False)) if a != b),
                min(len(answer.body), len(expected[answer.kind])),
            )
            wrong.append(f"request {answer.kind}: differs at byte {at} of {len(expected[answer.kind])}")
    return len(answers) - len(wrong), len(answers), wrong
