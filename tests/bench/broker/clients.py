"""Four unmodified clients at once through the guard: three runtime-API programs and PyTorch."""

from collections.abc import Iterator
from typing import Final

from tests.bench.core.bench import Bench, Measurement
from tests.bench.core.client import Clients
from tests.bench.core.finding import Finding, all_of
from tests.bench.core.programs import Work

SECONDS: Final = 2.0


def measure(bench: Bench) -> Iterator[Finding]:
    """All four hold a context at the same time, both lists show them, and all four finish their work."""
    work = Work(seconds=SECONDS, controlled=True)
    with bench.guard() as guard, Clients() as clients:
        torch = clients.start(bench.programs.torch(work), guard.pipe_directory, "torch")
        started = [*bench.workers(clients, guard, 3, work), torch]
        torch.wait_for("first_kernel")
        pids = {client.pid for client in started}
        listed = pids & guard.ui.all_clients()
        known = pids & {client.process.pid for client in guard.clients()}
        for client in started:
            client.go()
        outcomes = [client.finish() for client in started]
    failed = "; ".join(outcome.describe() for outcome in outcomes if not outcome.ok)
    yield all_of("clients finish", sum(outcome.ok for outcome in outcomes), 4, "clients", note=failed)
    yield all_of("clients in get_client_list", len(listed), 4, "clients")
    yield all_of("clients in mpsguard-ctl", len(known), 4, "clients")


MEASUREMENT: Final = Measurement("clients", "four unmodified clients at once, one of them PyTorch", measure)
