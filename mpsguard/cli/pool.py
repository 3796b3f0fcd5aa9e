"""`mpsguard pool`: keeps one user's images in memory, and warm workers."""

import asyncio
import os
import resource
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click
from msgspec.structs import replace

from mpsguard.cli import listening
from mpsguard.cli.listening import Address
from mpsguard.cli.options import given_options
from mpsguard.images.pool.address import default_socket
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.messages import MOST_TIER_BYTES
from mpsguard.images.pool.schedule import PoolPolicy
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.location import parse_size
from mpsguard.linux.extras import how_to_install

_EXTRA: Final = {"blake3", "prometheus_client"}
"""What the extra `images` brings, and the pool loads."""
_OF_WORKERS: Final = {"modules": "--import", "minimum": "--minimum", "maximum": "--maximum", "idle": "--idle"}
"""Parameters and their options that mean something with --prepare alone."""

if TYPE_CHECKING:
    from mpsguard.images.pool.metrics import PoolMetrics


def _size(_context: click.Context, _parameter: click.Parameter, text: str | None) -> int:
    if text is None:
        return 0
    size = parse_size(text)
    if size is None:
        raise click.BadParameter(f'{text!r} is no whole number with M, G or T, such as "16G"')
    if size > MOST_TIER_BYTES:
        raise click.BadParameter(f"{text}: {MOST_TIER_BYTES >> 40}T is the most")
    return size


def _address(_context: click.Context, _parameter: click.Parameter, text: str | None) -> Address | None:
    return None if text is None else listening.address(text)


def _names_module(text: str) -> bool:
    return all(part.isidentifier() for part in text.split("."))


def _function(_context: click.Context, _parameter: click.Parameter, text: str | None) -> str | None:
    module, colon, name = (text or "a:b").partition(":")
    if not colon or not name.isidentifier() or not _names_module(module):
        raise click.BadParameter(f"{text!r} is not MODULE:FUNCTION")
    return text


def _modules(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _names_module(name):
            raise click.BadParameter(f"{name!r} is not the name of a module")
    return names


@click.command(epilog="Exit codes: 0 ended by INT or TERM; 1 it cannot start; 2 usage.")
@click.option("--socket", type=click.Path(path_type=Path), help="Where to listen; MPSGUARD_POOL names it for programs.")
@click.option(
    "--host-memory", required=True, metavar="SIZE", callback=_size, help="Most host memory for images, such as 16G."
)
@click.option("--gpu-memory", metavar="SIZE", callback=_size, help="Most GPU memory for images; none by default.")
@click.option(
    "--pinned-memory",
    metavar="SIZE",
    callback=_size,
    help="Host memory that programs pin for the GPU, as a whole; none by default.",
)
@click.option(
    "--prepare",
    metavar="MODULE:FUNCTION",
    callback=_function,
    help="Prepares a warm worker; without it there are no workers.",
)
@click.option(
    "--import",
    "modules",
    metavar="MODULE",
    multiple=True,
    callback=_modules,
    help="With --prepare: imported once for all workers, such as torch; repeatable.",
)
@click.option(
    "--metrics", metavar="HOST:PORT", callback=_address, help="Where Prometheus gets /metrics; nowhere by default."
)
@click.option(
    "--minimum",
    type=click.IntRange(0, 256),
    default=1,
    show_default=True,
    help="With --prepare: workers that always wait.",
)
@click.option(
    "--maximum",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="With --prepare: most workers, with those that serve.",
)
@click.option(
    "--idle",
    type=click.FloatRange(0, 86400),
    default=300.0,
    show_default=True,
    help="With --prepare: seconds after which a worker above the minimum ends.",
)
def pool(
    *,
    socket: Path | None,
    host_memory: int,
    gpu_memory: int,
    pinned_memory: int,
    prepare: str | None,
    modules: tuple[str, ...],
    metrics: Address | None,
    minimum: int,
    maximum: int,
    idle: float,
) -> None:
    """Keep images in memory for all programs of this user, and warm workers that start them.

    Programs find it at MPSGUARD_POOL, or else at mpsguard/pool.sock in XDG_RUNTIME_DIR or ~/.local/state. No guard is
    needed.
    """
    try:
        path = default_socket() if socket is None else socket.absolute()
        if minimum > maximum:
            raise click.UsageError(f"--minimum {minimum} is more than --maximum {maximum}")
        if prepare is None and (given := given_options(_OF_WORKERS)):
            raise click.UsageError(f"{given[0]} is for workers: give --prepare, too")
        policy = PoolPolicy(minimum=minimum, maximum=maximum, idle=idle)
        budgets = {Tier.HOST: host_memory, Tier.PINNED: pinned_memory, Tier.GPU: gpu_memory}
        if not asyncio.run(_serve(path, budgets, _Workers(prepare, modules, policy), metrics)):
            click.echo("mpsguard pool: ends before what it reads: a store does not answer", err=True)
            sys.stdout.flush()
            # Readers that are in the midst of a read would be waited for.
            os._exit(0)
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        click.echo(f"mpsguard pool: it needs {error.name}: {how_to_install('images')}", err=True)
        sys.exit(1)
    except PoolError as error:
        click.echo(f"mpsguard pool: {error}", err=True)
        sys.exit(1)


class _Workers(NamedTuple):
    """What the command line says of workers."""

    prepare: str | None
    modules: tuple[str, ...]
    policy: PoolPolicy


async def _serve(path: Path, budgets: dict[Tier, int], wanted: _Workers, address: Address | None) -> bool:
    """Serve until a signal comes; return whether all reading has ended."""
    # They need blake3, which a node without images need not have.
    from mpsguard.images.pool.metrics import PoolMetrics  # noqa: PLC0415
    from mpsguard.images.pool.server import PoolServer  # noqa: PLC0415
    from mpsguard.images.pool.tier_owner import TierOwner  # noqa: PLC0415
    from mpsguard.images.pool.worker_pool import WorkerPool  # noqa: PLC0415

    # Images are descriptors: one each in host memory, up to 253 on a GPU.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    # Were it ignored, pids of its processes would be free before it has done with them.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    counted = PoolMetrics()
    owner = TierOwner(budgets, counted)
    workers = None
    if wanted.prepare is not None:
        workers = WorkerPool(wanted.prepare, wanted.policy, path, counted, wanted.modules)
    counted.watch(lambda: replace(owner.listing(), workers=() if workers is None else workers.info()))
    server = PoolServer(owner, workers)
    try:
        server.open(path)
        if address is not None:
            _serve_metrics(address, counted)
        if workers is not None:
            workers.open()
        click.echo(f"mpsguard pool: serves {path}", err=True)
        await stop.wait()
    finally:
        await server.close()
        if workers is not None:
            for pid in await workers.close():
                click.echo(f"mpsguard pool: ends before process {pid}, which has not ended by SIGKILL", err=True)
        ended = await owner.close()
    return ended


def _serve_metrics(address: Address, counted: "PoolMetrics") -> None:
    # As above: a node without metrics need not have it.
    from prometheus_client import make_wsgi_app  # noqa: PLC0415

    from mpsguard.guard.metrics.server import serve_http  # noqa: PLC0415

    try:
        serve_http(address.host, address.port, make_wsgi_app(counted.registry))
    except OSError as error:
        raise PoolError(f"{address.host}:{address.port}: {error.strerror or error}") from None
