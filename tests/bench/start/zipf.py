"""40 models and GPU memory for 10: requests by popularity, answered from the pool's tiers, or by reloading files."""

import json
from collections.abc import Iterator
from typing import Final

from tests.bench.checkpoint.place import finished, store_for
from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Client, Clients
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.statistics import percentile
from tests.bench.start.place import MIB, models, pool, program

_WITHIN: Final = 200.0


def measure(bench: Bench) -> Iterator[Finding]:
    """GPT-2 in fp16, 0.25 GB each; half of them are in pinned memory."""
    kind = "small-gpt2" if bench.programs.simulated else "gpt2"
    count, most, asked = bench.runs(40, 8), bench.runs(10, 2), bench.runs(1000, 60)
    size = 8 * MIB if bench.programs.simulated else 300 * MIB
    directory, _ = store_for(bench, "zipf", 2 * count, size)
    with (
        bench.guard() as guard,
        Clients() as clients,
        models(bench, clients, guard, directory, kind=kind, count=count) as made,
    ):
        answers = directory / "answers.json"
        answers.write_text(json.dumps(made.answers))
        words = ["--kind", kind, "--answers", answers, "--requests", asked, "--files", directory / "files"]
        words += ["--most", most]
        reloading = program(bench, clients, guard, "zipf_program", words)
        yield from finished("reloading from files", reloading, _WITHIN)
        gpu, pinned = most * made.size, count // 2 * made.size
        with pool(bench, clients, guard, made, kind, workers=0, gpu=gpu, pinned=pinned) as served:
            words += ["--socket", served.path, "--store", directory / "store"]
            pooled = program(bench, clients, guard, "zipf_program", words)
            yield from finished("answers from the pool's tiers", pooled, _WITHIN)
    yield from _findings(f"{count} models, GPU memory for {most}", pooled, reloading)


def _findings(what: str, pooled: Client, reloading: Client) -> Iterator[Finding]:
    ours, theirs = pooled.all_seen("answered"), reloading.all_seen("answered")
    wrong = sum(not event.number("right") for event in ours)
    yield none_of(f"{what}: wrong answers", wrong, len(ours), "answers")
    if not ours or not theirs:
        return
    hits, their_hits = (sum(each.number("hit") for each in those) / len(those) for those in (ours, theirs))
    samples, their_samples = ([1e3 * each.number("seconds") for each in those] for those in (ours, theirs))
    spreads = [
        f"{name}: p50 {percentile(those, 0.5):.4g}, p99 {percentile(those, 0.99):.4g} ms, hits {rate:.2f}"
        for name, those, rate in (("ours", samples, hits), ("LRU of files", their_samples, their_hits))
    ]
    yield sampled(
        f"{what}: request to answer",
        samples,
        peer=their_samples,
        peer_name="LRU reload",
        unit="ms",
        bar="p99 <= that of the reload",
        holds=percentile(samples, 0.99) <= percentile(their_samples, 0.99),
        note="; ".join(spreads),
    )


MEASUREMENT: Final = Measurement("zipf", "40 models on a GPU with memory for 10", measure)
