"""All surfaces by their names."""

from collections.abc import Mapping
from typing import Any, Final

from fault_injection.fuzzing import (
    control_api,
    core_dump,
    daemon_logs,
    fault_list,
    handshake,
    images,
    kernel_log,
    proc_files,
    supervisor,
    uevents,
    vault,
    zone_table,
)
from fault_injection.fuzzing.surface import Surface

IN_PROCESS: Final[Mapping[str, type[Surface[Any]]]] = {
    each.name: each
    for each in (
        handshake.Words,
        handshake.Conversation,
        control_api.ControlApi,
        vault.Messages,
        vault.Records,
        supervisor.Messages,
        supervisor.Channel,
        zone_table.ZoneTable,
        core_dump.CoreDump,
        daemon_logs.DaemonLogs,
        kernel_log.KernelLog,
        uevents.KernelEvents,
        fault_list.FaultLists,
        proc_files.ProcFiles,
        images.Manifests,
        images.Streams,
    )
}
"""Surfaces with code that runs in the worker itself."""
