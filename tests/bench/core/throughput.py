"""How much clients get done together."""

from collections.abc import Sequence

from tests.bench.core.bench import Bench, Target
from tests.bench.core.client import Client, Clients
from tests.bench.core.errors import SuiteError
from tests.bench.core.programs import Work


def throughput(bench: Bench, target: Target, count: int, work: Work) -> float:
    """Kernels per second of so many clients together; `work` is controlled. SuiteError if one of them fails."""
    with Clients() as clients:
        return released_together(bench.workers(clients, target, count, work))


def released_together(clients: Sequence[Client]) -> float:
    """Kernels per second of clients that wait to be released, as here they are, at the same moment; SuiteError."""
    for client in clients:
        client.go()
    outcomes = [client.finish() for client in clients]
    total = 0.0
    for outcome in outcomes:
        finished = outcome.find("finished")
        if finished is None or not outcome.ok:
            raise SuiteError(outcome.describe())
        total += finished.number("iterations") / finished.number("seconds")
    return total
