"""Live resize of token servers under load: the pause that their network clients see, and whether any token is lost."""

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, all_of, none_of, sampled
from tests.bench.core.guard import Guard, Options
from tests.bench.core.statistics import percentile
from tests.bench.failover.program import Service
from tests.bench.failover.streams import Answer, Streams, compare, reference
from tests.bench.isolation.partial import kept

SERVICES: Final = 2
CLIENTS, TOKENS = 4, 200
ROUNDS, QUICK_ROUNDS = 10, 2
ENOUGH: Final = 20
SHARES: Final = (50, 100)
"""In turn."""
BAR_MS: Final = 30.0
CLASSES: Final = {"served": "sm_share = 100"}
_AROUND_S: Final = 0.5
"""Of ordinary work behind each resize, so that a silence has its end."""
_BEFORE_NS, _BEHIND_NS = 100_000_000, 400_000_000
"""Where the silence of a takeover is looked for, around the moment at which the standby was promoted."""


@dataclass
class _Run:
    bench: Bench
    pauses: list[float] = field(default_factory=list)
    """ms."""
    took: list[float] = field(default_factory=list)
    """Seconds."""
    answers: list[Answer] = field(default_factory=list)
    expected: dict[int, bytes] = field(default_factory=dict)
    right_share: int = 0

    def make(self) -> None:
        with ExitStack() as stack:
            guard = stack.enter_context(self.bench.guard(options=Options(standby=True, classes=CLASSES)))
            directory = self.bench.root / "resize"
            directory.mkdir()
            services = []
            for number in range(SERVICES):
                service = Service(
                    guard,
                    directory,
                    f"served-{number}",
                    model="gpt2",
                    mode="vault",
                    device="cuda",
                    options=("--class", "served"),
                )
                stack.callback(service.program.close)
                services.append(service)
            for service in services:
                service.wait_until_guarded()
            self.expected.update(reference(services[0].address, TOKENS))
            streams = [Streams(service.address, CLIENTS, TOKENS) for service in services]
            for each in streams:
                each.start()
            try:
                for number in range(self.bench.runs(ROUNDS, QUICK_ROUNDS)):
                    self._round(guard, services, streams, SHARES[number % len(SHARES)])
            finally:
                for each in streams:
                    each.stop()
                    self.answers.extend(each.answers)

    def _round(self, guard: Guard, services: Sequence[Service], streams: Sequence[Streams], share: int) -> None:
        """Resize all at once: each needs a new standby, which takes most of the time."""
        with ThreadPoolExecutor(len(services)) as pool:
            list(
                pool.map(lambda pair: self._resize(guard, pair[0], pair[1], share), zip(services, streams, strict=True))
            )
        clients = {client.process.pid: client.sm_share for client in guard.clients()}
        self.right_share += sum(clients.get(service.active()) == share for service in services)
        self.bench.say(f"  to {share} %: pauses {', '.join(f'{pause:.1f}' for pause in self.pauses[-SERVICES:])} ms")

    def _resize(self, guard: Guard, service: Service, streams: Streams, share: int) -> None:
        begin = time.monotonic_ns()
        guard.resize(service.name, share)
        self.took.append((time.monotonic_ns() - begin) / 1e9)
        promoted = int(service.program.wait_for("promoted", begin)["ns"])
        service.program.wait_for("first_operation", begin)
        time.sleep(_AROUND_S)
        self.pauses.append(streams.longest_silence(promoted - _BEFORE_NS, promoted + _BEHIND_NS) / 1e6)

    def rows(self) -> Iterator[Finding]:
        if not self.pauses:
            return
        p50 = median(self.pauses)
        yield sampled(
            "live resize of a GPT-2 token server under load: longest silence of an answer around it",
            self.pauses,
            unit="ms",
            bar=f"p50 <= {BAR_MS:g} ms",
            holds=p50 <= BAR_MS and len(self.pauses) >= ENOUGH,
            note=f"{len(self.pauses)} resizes; p99 {percentile(self.pauses, 0.99):.1f} ms; done after "
            f"{median(self.took):.1f} s, most of it until the standby had started",
        )
        resizes = len(self.pauses)
        broken = [answer for answer in self.answers if not whole(answer)]
        yield none_of(
            f"live resize: answers with a token lost or doubled, over {resizes} resizes",
            len(broken),
            len(self.answers),
            "answers",
            note="; ".join(answer.error for answer in broken[:3]),
        )
        right, asked, _ = compare(self.answers, self.expected)
        yield sampled(
            "live resize: answers that are bit by bit those at 100 %",
            [right / asked if asked else 0.0],
            unit="",
            bar="reported: libraries choose their algorithms by the number of SMs",
            holds=True,
        )
        yield all_of("live resize: processes that have the share that was asked for", self.right_share, resizes, "")


def whole(answer: Answer) -> bool:
    """Whether an answer has each of its tokens once, in order, and its end."""
    if answer.error or not answer.body.endswith(b"0\r\n\r\n"):
        return False
    said = [json.loads(line) for line in answer.body.splitlines() if line.startswith(b"{")]
    indexes = [each["index"] for each in said if "index" in each]
    return indexes == list(range(len(indexes))) and bool(indexes) and said[-1].get("done") is True


def measure(bench: Bench) -> Iterator[Finding]:
    """Resizes of two services, both at the same time."""
    if bench.programs.simulated:
        raise SuiteError("without a GPU the token server is no client, and has no share")
    run = _Run(bench)
    yield from kept(run.make, run.rows)


MEASUREMENT: Final = Measurement(
    "resize", "token servers under load get another share: the pause, and no token lost", measure
)
