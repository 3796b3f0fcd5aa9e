"""`mpsguard kubernetes-reporter`: pods to the guard, faults to the API server and to NVSentinel."""

import asyncio
import logging
import sys
from pathlib import Path
from typing import Final, NoReturn

import click
import structlog

from mpsguard.guard.config import DEFAULT_RUN_DIRECTORY
from mpsguard.linux.extras import how_to_install

_STATE_DIRECTORY: Final = Path("/var/lib/mpsguard/kubernetes-reporter")
_POD_RESOURCES: Final = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
_START_EXIT: Final = 1


@click.command("kubernetes-reporter")
@click.option("--node", envvar="NODE_NAME", required=True, help="This node's name in Kubernetes; also NODE_NAME.")
@click.option(
    "--run-directory",
    envvar="MPSGUARD_RUN_DIRECTORY",
    default=DEFAULT_RUN_DIRECTORY,
    show_default=True,
    help="Where the guard's sockets are.",
)
@click.option(
    "--state-directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=_STATE_DIRECTORY,
    show_default=True,
    help="Where it is kept what was told, so that nothing is told twice after a restart.",
)
@click.option(
    "--interval", type=click.FloatRange(1, 600), default=10.0, show_default=True, help="Seconds between two rounds."
)
@click.option(
    "--pod-resources",
    type=click.Path(path_type=Path),
    default=_POD_RESOURCES,
    show_default=True,
    help="Socket of the kubelet's pod-resources API.",
)
@click.option("--events/--no-events", default=True, show_default=True, help="Write Events on pods and node.")
@click.option(
    "--names",
    type=click.Choice(["all", "namespace"]),
    default="all",
    show_default=True,
    help="Pods that an Event of a pod may name: all, or those of its own namespace.",
)
@click.option("--nvsentinel", type=click.Path(path_type=Path), help="Socket of NVSentinel's platform connector.")
@click.option(
    "--metrics-port", type=click.IntRange(1, 65535), help="Serve the guard's metrics at this port of --metrics-host."
)
@click.option("--metrics-host", default="0.0.0.0", show_default=True, help="Address for --metrics-port.")  # noqa: S104
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="How to reach the API server; by default as a pod does.",
)
def kubernetes_reporter(
    *,
    node: str,
    run_directory: str,
    state_directory: Path,
    interval: float,
    pod_resources: Path,
    events: bool,
    names: str,
    nvsentinel: Path | None,
    metrics_port: int | None,
    metrics_host: str,
    kubeconfig: Path | None,
) -> None:
    """Tell the guard of this node's pods, and pods, node and NVSentinel of faults, until SIGTERM.

    A process beside the guard, which may end and start again at any time. It needs the extra `kubernetes`: pip install
    'mpsguard[kubernetes]'.
    """
    try:
        from mpsguard.guard.kubernetes.notices import NamedPods  # noqa: PLC0415 - an extra that may be missing
        from mpsguard.guard.kubernetes.service import ReporterSettings, ReporterStartError, serve  # noqa: PLC0415 - as above
    except ModuleNotFoundError as error:
        _fail(f"kubernetes-reporter needs {error.name}: {how_to_install('kubernetes')}")
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    settings = ReporterSettings(
        node=node,
        run_directory=run_directory,
        state_directory=state_directory,
        interval=interval,
        pod_resources=pod_resources,
        events=events,
        names=NamedPods(names),
        nvsentinel=nvsentinel,
        metrics=(metrics_host, metrics_port) if metrics_port is not None else None,
        kubeconfig=kubeconfig,
    )
    try:
        asyncio.run(serve(settings))
    except ReporterStartError as error:
        _fail(str(error))


def _fail(message: str) -> NoReturn:
    click.echo(f"mpsguard: {message}", err=True)
    sys.exit(_START_EXIT)
