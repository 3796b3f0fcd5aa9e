"""Legacy CUDA IPC between processes under the preload, and with one that is not, against a stub libcuda."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, NamedTuple

import pytest

from mpsguard.preload.library import PreloadSettings
from tests.integration.preload.bench import SECONDS, Bench

STRANGER = 65534


class Exporter(NamedTuple):
    process: subprocess.Popen[str]
    large: str
    small: str
    """Lines that say what the handles are."""

    def goes_on(self) -> None:
        _told(self.process.stdin).write("\n")
        _told(self.process.stdin).flush()


def _told(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def start(
    bench: Bench,
    scenario: str,
    settings: PreloadSettings | None = None,
    environment: Mapping[str, str] | None = None,
    **more: object,
) -> subprocess.Popen[str]:
    process: subprocess.Popen[str] = subprocess.Popen(
        [str(bench.directory / "program"), "dlsym", scenario],
        env=bench.environment(settings, **(environment or {})),
        cwd=bench.directory,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,  # type: ignore[call-overload]
    )
    return process


@contextmanager
def exporting(bench: Bench, **environment: str) -> Iterator[Exporter]:
    """An exporter that waits, with a child that has inherited its socket."""
    process = start(bench, "ipc_exporter", PreloadSettings(), environment)
    child = 0
    try:
        out = _told(process.stdout)
        large, small = out.readline(), out.readline()
        child = int(out.readline())
        yield Exporter(process, large, small)
    finally:
        process.kill()
        if child:
            os.kill(child, signal.SIGKILL)
        process.communicate()


def ends_well(process: subprocess.Popen[str], given: str) -> None:
    _, errors = process.communicate(given, timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")


@pytest.mark.parametrize("freed", [True, False], ids=["freed", "killed"])
def test_two_processes_share_memory_and_the_importer_outlives_the_exporter(plain: Bench, *, freed: bool) -> None:
    with exporting(plain) as exporter, start(plain, "ipc_importer", PreloadSettings()) as importer:
        _told(importer.stdin).write(exporter.large + exporter.small)
        _told(importer.stdin).flush()
        assert _told(importer.stdout).readline() == "written\n"
        if freed:
            exporter.goes_on()
            assert _told(exporter.process.stdout).readline() == "freed\n"
        else:
            # Its child has the socket still, and never answers.
            exporter.process.kill()
            exporter.process.wait(SECONDS)
        ends_well(importer, "\n")


def test_memory_is_shared_though_descriptor_0_is_free(plain: Bench) -> None:
    plain.passes("dlsym", "ipc_without_input", PreloadSettings(snapshots=False))


def test_what_is_imported_goes_with_its_context(plain: Bench) -> None:
    with exporting(plain) as exporter:
        ends_well(start(plain, "ipc_leaver", PreloadSettings()), exporter.large)
        ends_well(start(plain, "ipc_leaver", PreloadSettings()), exporter.small)


def test_under_sanitizers(sanitized: Bench) -> None:
    with exporting(sanitized) as exporter:
        ends_well(start(sanitized, "ipc_leaver", PreloadSettings()), exporter.large)


def test_a_process_without_the_preload_is_refused_at_once(plain: Bench) -> None:
    with exporting(plain) as exporter:
        ends_well(start(plain, "ipc_refused"), exporter.large)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_refused_at_once(plain: Bench) -> None:
    for directory in [plain.directory, *plain.directory.parents]:
        if not directory.stat().st_mode & 0o001:
            directory.chmod(directory.stat().st_mode | 0o011)
    with exporting(plain) as exporter:
        ends_well(start(plain, "ipc_refused", PreloadSettings(), user=STRANGER, group=STRANGER), exporter.large)
