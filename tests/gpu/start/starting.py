"""From a request to the first answer: a cold process, a plain warm one, and a warm worker with memory that is there."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Final, NamedTuple

from tests.gpu.checkpoint.place import device, store_for
from tests.gpu.core.bench import Bench, Measurement
from tests.gpu.core.client import Client, Clients
from tests.gpu.core.events import Event
from tests.gpu.core.finding import Finding, none_of, not_measured, sampled
from tests.gpu.core.gpu_memory import gpu_memory
from tests.gpu.core.guard import Guard
from tests.gpu.core.statistics import percentile
from tests.gpu.start.place import MIB, Made, Pool, Start, drop, models, pool, program, same

_SHARED: Final = 1.25
_EARLY: Final = 0.6
_BUS: Final = 1.15
_LIKE: Final = 0.87


class Plan(NamedTuple):
    """How a model is measured."""

    kind: str
    small: str
    """What stands for it without a GPU."""
    size: int
    """Bytes of its weights, about."""
    pinned: float | None
    """Bar for the first answer from pinned memory, ms; None: by the bus."""
    gpu: float | None
    """The same with memory that is on the GPU already; None: no bar."""
    cold: float
    """Seconds that may be spent on cold processes."""
    cold_at_once: int = 5
    """Most of a cold start are imports, of which each process does its own: so many do not wait for one another."""
    workers: int = 8


MOBILENET: Final = Plan("mobilenet", "small-mobilenet", 14 << 20, 30.0, 15.0, 210.0)
GPT2_LARGE: Final = Plan("gpt2-large", "small-gpt2", 3200 << 20, 80.0, 40.0, 150.0)
SEVEN: Final = Plan("7b", "small-llama", 13500 << 20, None, None, 60.0, cold_at_once=3)


def measure(bench: Bench, plan: Plan) -> Iterator[Finding]:
    """20 of each; 3, if quick."""
    kind = plan.small if bench.programs.simulated else plan.kind
    room = 64 * MIB if bench.programs.simulated else 2 * plan.size
    directory, _ = store_for(bench, kind, 1, room)
    with bench.guard() as guard, Clients() as clients, models(bench, clients, guard, directory, kind=kind) as made:
        name, rounds = made.names[0], bench.runs(20, 1)
        words = ["--kind", kind, "--file", made.file(name)]
        yield from _cold(bench, clients, guard, made=made, words=words, plan=plan)
        warm = program(bench, clients, guard, "plain", [*words, "--rounds", rounds + 1])
        warm.finish(200.0)
        yield from _plain("a plain warm process", [each.number("seconds") for each in _answers(warm)[1:]], plan)
        rate = _bus(bench, clients, guard)
        budget = made.size + 4 * MIB
        workers = bench.runs(plan.workers, 2)
        with pool(bench, clients, guard, made, kind, workers=workers, gpu=budget, pinned=budget) as served:
            yield from _ours(bench, guard, served, plan=plan, workers=workers, rounds=rounds, rate=rate)


def _cold(
    bench: Bench, clients: Clients, guard: Guard, *, made: Made, words: list[object], plan: Plan
) -> Iterator[Finding]:
    samples: list[float] = []
    ends, wrong = time.monotonic() + plan.cold, 0
    while len(samples) < bench.runs(20, 1) and time.monotonic() < ends:
        processes = []
        for _ in range(bench.runs(plan.cold_at_once, 1)):
            began = time.monotonic()
            processes.append((began, program(bench, clients, guard, "plain", words)))
        for began, process in processes:
            answered = process.wait_for("answered")
            samples.append(answered.monotonic - began)
            wrong += not same(_numbers(answered.members["answer"]), made.answers[made.names[0]])
            process.finish()
    yield from _plain(f"a cold process, {bench.runs(plan.cold_at_once, 1)} at a time", samples, plan)
    yield none_of(f"{plan.kind}: wrong answers of cold processes", wrong, len(samples), "answers")


def _plain(what: str, seconds: list[float], plan: Plan) -> Iterator[Finding]:
    if not seconds:
        yield not_measured(f"{plan.kind}, {what}", "it gave no answer")
        return
    samples = [1e3 * each for each in seconds]
    yield sampled(
        f"{plan.kind}, {what}: request to first answer",
        samples,
        unit="ms",
        bar="none: for comparison",
        holds=True,
        note=_spread(samples),
    )


def _bus(bench: Bench, clients: Clients, guard: Guard) -> float:
    """Bytes a second from pinned memory to the GPU."""
    process = program(bench, clients, guard, "bus", [])
    rate = process.wait_for("rate").number("rate")
    process.finish()
    return rate


def _ours(
    bench: Bench, guard: Guard, served: Pool, *, plan: Plan, workers: int, rounds: int, rate: float
) -> Iterator[Finding]:
    starts: dict[str, list[Start]] = {"pinned": [], "gpu": [], "demand": [], "at once": []}
    name = served.made.names[0]
    with gpu_memory(bench, guard) as memory:
        before = memory.used()
        served.wait(workers)
        idle = (memory.used() - before) / workers
        # The first start of each brings the image where it belongs; it does not count.
        plans = ["pinned", "gpu", "demand"]
        todo = [how for how in plans for _ in range(rounds + 1)]
        while todo:
            batch, todo = todo[:workers], todo[workers:]
            with ExitStack() as stack:
                for how in batch:
                    start = served.start(name, how)
                    stack.callback(start.connection.close)
                    starts[how].append(start)
                    drop(start)
            served.wait(workers)
        empty = memory.used()
        with ExitStack() as stack, ThreadPoolExecutor(workers) as threads:
            with served.start(name, "gpu").connection:
                used = memory.used() - empty
            served.wait(workers)
            empty = memory.used()
            running = [threads.submit(served.start, name, "gpu") for _ in range(workers)]
            starts["at once"] += [each.result() for each in running]
            for each in starts["at once"]:
                stack.callback(each.connection.close)
            together = memory.used() - empty
    given = [start for those in starts.values() for start in those]
    wrong = sum(not served.right(name, start) for start in given)
    yield none_of(f"{plan.kind}: wrong answers of warm workers", wrong, len(given), "answers")
    bytes_ms = 1e3 * served.made.size / rate
    pinned = plan.pinned if plan.pinned is not None else _BUS * bytes_ms
    bus = f"its {served.made.size / 1e9:.3g} GB need {bytes_ms:.1f} ms of the bus"
    yield _first_answer(f"{plan.kind}, ours, from pinned memory", starts["pinned"][1:], pinned, bus)
    yield _first_answer(f"{plan.kind}, ours, already on the GPU", starts["gpu"][1:], plan.gpu, "")
    yield _first_answer(f"{plan.kind}, ours, {workers} starts at once, on the GPU", starts["at once"], None, "")
    yield from _demand(plan, starts["demand"][1:], starts["pinned"][1:])
    yield from _memory(bench, served, plan=plan, workers=workers, used=used, together=together, idle=idle)


def _first_answer(name: str, starts: list[Start], bar: float | None, note: str) -> Finding:
    samples = [1e3 * start.seconds for start in starts]
    opened, filled, answered = (
        percentile([1e3 * start.told[key] for start in starts], 0.5) for key in ("opened", "filled", "answered")
    )
    steps = (
        f"in the worker: manifest read after {opened:.2f} ms, memory there after {filled:.2f}, answered {answered:.2f}"
    )
    return sampled(
        f"{name}: request to first answer",
        samples,
        unit="ms",
        bar="none: for comparison" if bar is None else f"p50 <= {bar:.4g}",
        holds=bar is None or percentile(samples, 0.5) <= bar,
        note="; ".join(filter(None, [_spread(samples), steps, note])),
    )


def _demand(plan: Plan, demand: list[Start], whole: list[Start]) -> Iterator[Finding]:
    """The bar is of the time that the whole image takes to arrive, in the same start."""
    complete, answered = (percentile([start.told["answered"] for start in those], 0.5) for those in (whole, demand))
    shares = [start.told["answered"] / start.told["whole"] for start in demand]
    yield sampled(
        f"{plan.kind}, on demand: first answer over the arrival of the whole image",
        shares,
        unit="",
        bar=f"p50 <= {_EARLY:g}",
        holds=percentile(shares, 0.5) <= _EARLY,
        note=f"answered after {1e3 * answered:.1f} ms, layer by layer; {1e3 * complete:.1f} ms by a start that waits "
        "for the whole, and has a CUDA graph. A dense model's answer needs all its bytes",
    )


def _memory(
    bench: Bench, served: Pool, *, plan: Plan, workers: int, used: float, together: float, idle: float
) -> Iterator[Finding]:
    notes = served.notes()
    pinning, whole = ([note[key] for note in notes] for key in ("pin", "all"))
    yield sampled(
        f"{plan.kind}: preparation of a worker, after its imports",
        whole,
        unit="s",
        bar="none: stated",
        holds=True,
        note=f"{'of it' if all(note['pinned'] for note in notes) else 'NOT PINNED:'} {percentile(pinning, 0.5):.2f} s "
        f"to pin the arena; {sum(note['recorded'] for note in notes):.0f} of {len(notes)} with a CUDA graph; "
        f"an idle worker has {idle / 1e6:.0f} MB of GPU memory",
    )
    resident = percentile([note["resident"] for note in notes], 0.5)
    if device(bench) == "cpu":
        # Host memory stands for the GPU's, and no counter has it.
        return
    weights = float(served.made.size)
    # The image stays on the GPU between two starts: neither number has it.
    own = (weights + max(together, 0.0)) / (weights + max(used, 0.0))
    processes = (weights + together + workers * idle) / (weights + used + idle)
    yield sampled(
        f"{plan.kind}: GPU memory of {workers} instances over that of one, beside what each has as a worker that waits",
        [own],
        unit="",
        bar=f"<= {_SHARED:g}",
        holds=own <= _SHARED,
        note=f"the weights, {weights / 1e6:.0f} MB, are there once; {used / 1e6:.0f} MB more for one start, "
        f"{together / 1e6:.0f} MB for {workers}. With the workers' contexts, kernels and graphs: {processes:.2f}",
    )
    shared = 1 - weights / (weights + idle + resident)
    yield sampled(
        f"{plan.kind}: share of a program's memory that is in no image, since a worker of the framework has it",
        [shared],
        unit="",
        bar=f">= {_LIKE:g}" if plan is MOBILENET else "reported",
        holds=plan is not MOBILENET or shared >= _LIKE,
        note=f"a second model's image adds {weights / 1e6:.0f} MB; a worker has {resident / 1e6:.0f} MB of host memory "
        f"of its own, and {idle / 1e6:.0f} MB on the GPU",
    )


def _answers(client: Client) -> list[Event]:
    return client.all_seen("answered")


def _numbers(value: object) -> list[float]:
    return [float(each) for each in value] if isinstance(value, list) else []


def _spread(samples: list[float]) -> str:
    return f"p50 {percentile(samples, 0.5):.4g}, p99 {percentile(samples, 0.99):.4g} ms of {len(samples)}"


def _of(plan: Plan) -> Callable[[Bench], Iterator[Finding]]:
    return partial(measure, plan=plan)


MEASUREMENTS: Final = (
    Measurement("mobilenet", "starts of MobileNetV2: cold, plain warm, ours", _of(MOBILENET)),
    Measurement("gpt2-large", "starts of GPT-2-large: cold, plain warm, ours", _of(GPT2_LARGE)),
    Measurement("7b", "starts of a 7B shape in fp16: cold, plain warm, ours", _of(SEVEN)),
)
