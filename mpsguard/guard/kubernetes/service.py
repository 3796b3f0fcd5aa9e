"""The process `mpsguard kubernetes-reporter`: everything it owns, from start to orderly end."""

import asyncio
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Final
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import msgspec
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

from mpsguard.guard.control_api.async_client import NoAnswerError, ask
from mpsguard.guard.control_api.messages.guard import Exposition
from mpsguard.guard.control_api.protocol import NoArguments
from mpsguard.guard.kubernetes.event_writer import CONTROLLER, EventWriter
from mpsguard.guard.kubernetes.node_pods import NodePods
from mpsguard.guard.kubernetes.notices import NamedPods
from mpsguard.guard.kubernetes.nvsentinel import NvsentinelSink
from mpsguard.guard.kubernetes.reporter import Reporter
from mpsguard.guard.kubernetes.sink import Sink
from mpsguard.guard.metrics.server import serve_http
from mpsguard.linux.nvidia import nvidia_gpus

_WITHIN: Final = 3.0
"""Seconds for the guard's answer; Prometheus waits ten by default."""
_IN_A_POD: Final = "not in a pod of Kubernetes"


def serve_metrics(host: str, port: int, run_directory: str) -> int:
    """Serve ``/metrics`` for as long as the process lives; return the port.

    Raises:
        OSError: the address cannot be had.
    """
    return serve_http(host, port, _app(run_directory))


def _app(run_directory: str) -> WSGIApplication:
    def app(environ: WSGIEnvironment, start: StartResponse) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] != "GET":
            return _respond(start, "405 Method Not Allowed", "GET alone\n")
        if environ["PATH_INFO"] != "/metrics":
            return _respond(start, "404 Not Found", "there is /metrics\n")
        try:
            # On the thread of this connection, beside the reporter's event loop.
            found = asyncio.run(ask(run_directory, "metrics", NoArguments(), Exposition, _WITHIN))
        except NoAnswerError as error:
            return _respond(start, "503 Service Unavailable", f"{error}\n")
        return _respond(start, "200 OK", found.text, "text/plain; version=0.0.4; charset=utf-8")

    return app


def _respond(
    start: StartResponse, status: str, text: str, content_type: str = "text/plain; charset=utf-8"
) -> Iterable[bytes]:
    body = text.encode()
    start(status, [("Content-Type", content_type), ("Content-Length", str(len(body)))])
    return [body]


class ReporterStartError(Exception):
    """The reporter cannot start; one line says why."""


class ReporterSettings(msgspec.Struct, frozen=True):
    """What the reporter is started with."""

    node: str
    run_directory: str
    state_directory: Path
    interval: float
    """Seconds between two rounds."""
    pod_resources: Path
    events: bool
    names: NamedPods
    nvsentinel: Path | None
    metrics: tuple[str, int] | None
    """Address at which the guard's metrics are served."""
    kubeconfig: Path | None


async def serve(settings: ReporterSettings) -> None:
    """Run until SIGTERM or SIGINT.

    Raises:
        ReporterStartError: it is not known how to reach the API server, or the address for metrics cannot be had.
    """
    config = _config(settings.kubeconfig)
    if settings.metrics is not None:
        host, port = settings.metrics
        try:
            serve_metrics(host, port, settings.run_directory)
        except OSError as error:
            raise ReporterStartError(f"{host}:{port} cannot be had: {error.strerror or error}") from None
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    api = AsyncClient(config=config, field_manager=CONTROLLER, trust_env=False)
    try:
        await Reporter(
            settings.run_directory,
            NodePods(api, settings.node, settings.pod_resources),
            _sinks(settings, api),
            settings.state_directory,
        ).run(settings.interval)
    except asyncio.CancelledError:
        # By a signal. What was not told is told after the next start.
        return
    finally:
        await api.close()


def _config(path: Path | None) -> SingleConfig:
    where = path or _IN_A_POD
    try:
        config = KubeConfig.from_service_account() if path is None else KubeConfig.from_file(path)
        chosen = config.get()
    except KeyError as error:
        raise ReporterStartError(f"{where}: {error.args[0]} is missing") from None
    except (AttributeError, TypeError):
        # lightkube takes it for granted that the file has a mapping of lists of mappings.
        raise ReporterStartError(f"{where}: not the form of a kubeconfig") from None
    except (ConfigError, OSError, msgspec.ValidationError, yaml.YAMLError) as error:
        raise ReporterStartError(f"{where}: {' '.join(str(error).split())}") from None
    if chosen is None or chosen.user is None:
        raise ReporterStartError(f"{where}: no user in the current context")
    return chosen


def _sinks(settings: ReporterSettings, api: AsyncClient) -> list[Sink]:
    sinks: list[Sink] = []
    if settings.events:
        sinks.append(EventWriter(api, settings.node, settings.names))
    if settings.nvsentinel is not None:
        gpus = {address: uuid for uuid, address in nvidia_gpus.pci_addresses().items()}
        sinks.append(NvsentinelSink(settings.nvsentinel, settings.node, gpus))
    return sinks
