"""Cells as rows of the result file: accuracy per class, latency, false accusations, and the suite's own honesty."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from fault_injection import catalog
from tests.bench.core.finding import Finding, none_of, sampled
from tests.bench.core.statistics import percentile
from tests.bench.results.schema import Peer, Row
from tests.bench.triage.cells import GUARDED, STOCK, Cell
from tests.bench.triage.verdict import NO_INCIDENT, RIGHT, UNKNOWN, WRONG, Verdict

P50_MS: Final = 5.0
P99_MS: Final = 20.0
"""Bars of the MMU class: from the access to the published incident."""
NAMED: Final = ("mmu", "sm", "engine", "process")
"""Classes with a culprit among the clients."""


def findings(cells: Sequence[Cell], left: int) -> Iterator[Finding]:
    """All rows; `left` cells were not reached."""
    made = [cell for cell in cells if cell.made]
    yield from _honesty(cells, made, left)
    stock = [cell for cell in made if cell.arm == STOCK]
    if stock:
        yield _as_the_table_says(stock)
    guarded = [cell for cell in made if cell.arm == GUARDED]
    if not guarded:
        return
    for name in (*NAMED, "lane"):
        members = [cell for cell in guarded if _class(cell) == name]
        if members:
            yield from _class_rows(name, members, [cell for cell in made if _class(cell) == name])
    yield _accusations(guarded)
    yield from _no_fault([cell for cell in guarded if _class(cell) == "none"])


def _class(cell: Cell) -> str:
    return catalog.named(cell.fault).fault_class


def _honesty(cells: Sequence[Cell], made: Sequence[Cell], left: int) -> Iterator[Finding]:
    silent = [cell for cell in made if not cell.effects]
    yield none_of(
        "injected faults that showed no effect", len(silent), len(made), "faults", note=_names(silent, lambda _: "")
    )
    broken = [cell for cell in cells if cell.error]
    note = _names(broken, lambda cell: f" ({cell.error[:160]})")
    total = len(cells) + left
    yield none_of(
        "cells that could not be made", len(broken) + left, total, "cells", note=f"{left} not reached. {note}"
    )
    skipped = {cell.fault: cell.skipped for cell in cells if cell.skipped}
    for fault, why in skipped.items():
        yield Finding(Row(name=f"{fault}: skipped", value=0, unit="", bar="injected", holds=False, runs=1), why)


def _as_the_table_says(stock: Sequence[Cell]) -> Finding:
    measured = [cell for cell in stock if catalog.named(cell.fault).measured]
    differing = [cell for cell in measured if difference(cell)]
    expected = [cell for cell in stock if not catalog.named(cell.fault).measured and difference(cell)]
    seen = sorted({f"{cell.fault}: {difference(cell)}" for cell in (*differing, *expected)})
    return none_of(
        "effects under stock MPS that differ from the table of faults",
        len(differing),
        len(measured),
        "faults",
        note="; ".join(seen),
    )


def difference(cell: Cell) -> str:
    """How a stock cell differs from its row in `faults.toml`; empty if it does not."""
    fault = catalog.named(cell.fault)
    found = []
    codes = {innocent.code for innocent in cell.innocents}
    if codes - {*(fault.innocents or (0,))}:
        found.append(f"innocents {sorted(codes)}")
    if cell.returned is not None and cell.returned not in fault.culprit:
        found.append(f"culprit {cell.returned}")
    if cell.xids is not None and {line.number for line in cell.xids} != set(fault.xids):
        found.append(f"Xids {sorted({line.number for line in cell.xids})}")
    return ", ".join(found)


def _class_rows(name: str, guarded: Sequence[Cell], both: Sequence[Cell]) -> Iterator[Finding]:
    verdicts = [cell.verdict for cell in guarded if cell.verdict]
    given = all(verdict.given for verdict in verdicts)
    total = len(verdicts)
    if name in NAMED:
        right = sum(verdict.culprit == RIGHT for verdict in verdicts)
        wrong = sum(verdict.culprit == WRONG for verdict in verdicts)
        # An SM fault leaves no name in the stock driver: not knowing is allowed there, a wrong name is not. The suite
        # `sm` measures what does name it, by a sentinel or by the clients' choice.
        enough = 0 if name == "sm" else total
        holds = given and right >= enough and not wrong
        bar = "none wrong (see the suite sm)" if name == "sm" else f"{total} of {total}"
        yield _count(
            f"{name}: culprit right", right, total, bar=bar, holds=holds, peer=_kernel(both), note=_told(guarded)
        )
    classed = sum(verdict.class_right for verdict in verdicts)
    yield _count(f"{name}: class right", classed, total, bar=f"{total} of {total}", holds=given and classed == total)
    if name == "process":
        ends = sum(verdict.end_right is True for verdict in verdicts)
        bar = f"{total} of {total}"
        yield _count("process: signal and work in flight right", ends, total, bar=bar, holds=given and ends == total)
    latencies = [verdict.latency_ms for verdict in verdicts if verdict.latency_ms is not None]
    if latencies:
        yield from _latency(name, latencies, total)


def _latency(name: str, latencies: Sequence[float], total: int) -> Iterator[Finding]:
    complete = len(latencies) == total
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    barred = name == "mmu"
    yield sampled(
        f"{name}: injection to published incident, p50",
        latencies,
        unit="ms",
        bar=f"<= {P50_MS:g} ms" if barred else "reported",
        holds=complete and p50 <= P50_MS if barred else complete,
        note="" if complete else f"{total - len(latencies)} of {total} have none",
    )
    holds = complete and p99 <= P99_MS if barred else complete
    bar = f"<= {P99_MS:g} ms" if barred else "reported"
    row = Row(
        name=f"{name}: injection to published incident, p99",
        value=p99,
        unit="ms",
        bar=bar,
        holds=holds,
        runs=len(latencies),
    )
    yield Finding(row, samples=(p99,))


def _kernel(cells: Sequence[Cell]) -> Peer | None:
    """How often the pid in the kernel's own Xid line was the culprit's."""
    pids = [line.whose for cell in cells for line in (cell.xids or ()) if line.whose != "nobody"]
    if not pids:
        return None
    return Peer(name="pid in the kernel's Xid line", value=sum(whose == "culprit" for whose in pids), count=len(pids))


def _told(cells: Sequence[Cell]) -> str:
    """The cells in which the culprit was not named right."""
    other = [cell for cell in cells if cell.verdict and cell.verdict.culprit != RIGHT]
    silent = {cell.verdict.why for cell in other if cell.verdict and not cell.verdict.given}
    if silent:
        return f"no verdict: {'; '.join(sorted(silent))}"
    words = [UNKNOWN, WRONG, NO_INCIDENT]
    return "; ".join(
        f"{word}: {_names([cell for cell in other if cell.verdict and cell.verdict.culprit == word], _why)}"
        for word in words
        if any(cell.verdict and cell.verdict.culprit == word for cell in other)
    )


def _why(cell: Cell) -> str:
    return f" ({cell.verdict.why})" if cell.verdict and cell.verdict.why else ""


def _verdicts(cells: Sequence[Cell]) -> list[Verdict]:
    return [cell.verdict for cell in cells if cell.verdict]


def _accusations(guarded: Sequence[Cell]) -> Finding:
    wrong = [cell for cell in guarded if cell.verdict and cell.verdict.culprit == WRONG]
    able = sum(verdict.given for verdict in _verdicts(guarded))
    return none_of("false accusations", len(wrong), able, "faults", note=_names(wrong, _why))


def _no_fault(cells: Sequence[Cell]) -> Iterator[Finding]:
    able = [cell for cell in cells if cell.verdict and cell.verdict.given]
    if able:
        bad = [cell for cell in able if cell.verdict and not cell.verdict.class_right]
        yield none_of(
            "incidents where nobody but the culprit was hurt", len(bad), len(able), "faults", note=_names(bad, _why)
        )


def _count(
    name: str, value: int, total: int, *, bar: str, holds: bool, peer: Peer | None = None, note: str = ""
) -> Finding:
    row = Row(name=name, value=value, count=total, unit="faults", bar=bar, holds=holds, runs=total, peer=peer)
    return Finding(row, note)


def _names(cells: Sequence[Cell], more: Callable[[Cell], str]) -> str:
    return "; ".join(f"{cell.arm} {cell.fault} #{cell.repetition}{more(cell)}" for cell in cells[:12])
