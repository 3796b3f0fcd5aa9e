"""A measurement that is cut short shows what it has: the rows of what was made, and then the reason."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from tests.bench.core.errors import SuiteError
from tests.bench.core.finding import Finding, none_of
from tests.bench.core.stop import StopRunError
from tests.bench.results.schema import Row


def kept(make: Callable[[], None], rows: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Make it, then the rows; the rows of what there is if it fails or is stopped, and the reason goes on its way."""
    try:
        make()
    except (StopRunError, SuiteError, OSError, ValueError):
        yield from rows()
        raise
    yield from rows()


def not_made(name: str, errors: Sequence[str], made: int, wanted: int) -> Finding:
    """The row of repetitions that failed, could not be proven or were not reached: none may be."""
    left = wanted - made - len(errors)
    note = "; ".join([*([f"{left} not reached"] if left > 0 else []), *(error[:200] for error in errors[:4])])
    return none_of(f"{name}: repetitions not made or not proven", wanted - made, wanted, "repetitions", note=note)


def skipped(name: str, why: str) -> Finding:
    """What this machine cannot do, as a row that does not hold."""
    return Finding(Row(name=f"{name}: skipped", value=0, unit="", bar="measured", holds=False, runs=1), why)
