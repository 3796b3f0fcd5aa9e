"""Lanes that people reported, by what their logs say: whether clients were served, and how sure that is.

Lines are those of the reports, with other pids, addresses and times; where a report tells without a log, they are what
550.163 writes.
"""

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from mpsguard.guard.lanes.service_watch import ServiceWatch
from mpsguard.guard.model import Server
from mpsguard.linux.identity import Credentials, ProcessKey
from mpsguard.linux.nvidia import nvidia_gpus

CLIENT: Final = 0x3FFFFF
"""No process has this pid: clients have ended by the time that is looked at."""

FATAL: Final = "Control    73] Server encountered a fatal exception. Shutting down"


class Report(NamedTuple):
    """What was reported of a lane."""

    source: str
    uid: int
    control: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    turned_away: bool = True
    """Whether the client was hung up on; else it got its server."""
    proven: bool | None = True
    """Whether the lane fails, with proof (True) or as a doubt (False); None: it serves."""
    words: str = ""
    multiuser: bool = False


REPORTS: Final = (
    Report(
        "NVIDIA/k8s-device-plugin #1614 (580, Talos): no server starts, the plugin says that all is well",
        0,
        ("Control   261] Starting new server 337 for user 0", "Control   261] Server 337 exited with status 1"),
        ("Other   337] Startup", "Other   337] Initializing server process"),
        words="Server 337 exited with status 1",
    ),
    Report(
        "NVIDIA/k8s-device-plugin #685 (535): the server says why",
        0,
        (FATAL, "Control    73] Server 95 exited with status 1", "Control    73] Starting new server 98 for user 0"),
        ("Other   425] Initializing server process", "Legacy Server   425] Failed to start : invalid argument"),
        words="Failed to start : invalid argument",
    ),
    Report(
        "NVIDIA/k8s-device-plugin #762: all servers of the one user that there is, in a pod",
        1001,
        (
            "Control    64] Starting new server 92 for user 1001",
            FATAL,
            "Control    64] Server 92 exited with status 1",
            "Control    64] Starting new server 95 for user 1001",
            FATAL,
            "Control    64] Server 95 exited with status 1",
        ),
        words="exited with status 1",
    ),
    Report(
        "kubernetes-sigs/dra-driver-nvidia-gpu PR #1153: user 1000 has a server, then user 0's takes its place",
        1000,
        ("Control 11107] NEW SERVER 11803: Ready", "Control 11107] Server 11803 exited with status 0"),
        turned_away=False,
        proven=None,
    ),
    Report(
        "bottlerocket-os/bottlerocket-kernel-kit PR #415 (580): served, once a directory had its mode",
        1000,
        (),
        ("Server 4428] Server has started", "Server 4428] Client {PID: 4267, Context ID: 0} connected"),
        turned_away=False,
        proven=None,
    ),
    Report(
        "NVIDIA/k8s-device-plugin #1118: servers that take clients, and say no pid of any",
        0,
        (),
        (
            "Server    82] Server has started",
            "Server    82] Received new client request",
            "Server    82] Worker created",
        ),
        turned_away=False,
        proven=None,
    ),
    Report(
        "NVIDIA/nvidia-container-toolkit #277 (before 535): clients that leave without a word",
        1000,
        ("Control     1] Starting new server 17 for user 1000",),
        ("Other    17] Receive command failed, assuming client exit", "Other    17] Client process disconnected"),
        turned_away=False,
        proven=None,
    ),
    Report(
        "openmm/openmm #3873: a log that frightens, and is as it should be",
        0,
        (),
        (
            "Server  1702] Receive command failed, assuming client exit",
            "Server  1702] Client process disconnected",
        ),
        turned_away=False,
        proven=None,
    ),
    Report(
        "NVIDIA/k8s-device-plugin #762, as it would be with -M: the server is root's",
        1001,
        (FATAL, "Control    64] Server 92 exited with status 1"),
        multiuser=True,
        words="Server 92 exited with status 1",
    ),
    Report(
        "tensorflow/tensorflow #48367: a server that crashed, which its user could have done",
        1000,
        ("Control    20] Starting new server 21 for user 1000", "Control    20] Server 21 exited with status 0"),
        proven=False,
        words="Server 21 exited with status 0",
    ),
    Report(
        "tensorflow/tensorflow #48367, for root: no stranger could have done it",
        0,
        ("Control    20] Starting new server 21 for user 0", "Control    20] Server 21 exited with status 0"),
        words="Server 21 exited with status 0",
    ),
)


def _lines(texts: tuple[str, ...]) -> str:
    return "".join(f"[2026-02-06 09:34:17.770 {text}\n" for text in texts)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.source.partition(":")[0])
def test_a_reported_lane_is_judged_by_what_its_clients_got(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    monkeypatch.setattr(nvidia_gpus, "open_to", lambda *_: True)
    for name in ("control.log", "server.log"):
        (tmp_path / name).touch()
    watch = ServiceWatch(tmp_path, lambda *_: None, lambda: None, multiuser=report.multiuser)
    watch.begin()
    for _ in range(2):
        with watch.attempt(Credentials(CLIENT, report.uid, report.uid), 0.0) as attempt:
            if not report.turned_away:
                attempt.handed_over()
                watch.look([Server(ProcessKey(CLIENT, 1), "ACTIVE")])
            with (tmp_path / "control.log").open("a") as log:
                log.write(_lines(report.control))
            with (tmp_path / "server.log").open("a") as log:
                log.write(_lines(report.server))
            if report.turned_away:
                attempt.turned_away()
        watch.look([])
    found = watch.verdict()
    assert (None if found is None else found.proven) is report.proven
    assert report.words in (found.reason if found else "")


@pytest.mark.parametrize(
    ("source", "others", "waits"),
    [
        ("NVIDIA/k8s-device-plugin #679: user 1000 waits while user 0 has the server", "ACTIVE", False),
        (
            "NVIDIA/nvidia-container-toolkit #831: user 1000 waits for the server of root's, which never came up",
            "",
            True,
        ),
    ],
)
def test_a_reported_client_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, others: str, waits: bool
) -> None:
    monkeypatch.setattr("mpsguard.guard.lanes.service_watch.procfs.uid", lambda _: (0, 0))
    watch = ServiceWatch(tmp_path, lambda *_: None, lambda: None, multiuser=False)
    watch.begin()
    with watch.attempt(Credentials(CLIENT, 1000, 1000), 0.0):
        watch.look([Server(ProcessKey(CLIENT, 1), others or "INITIALIZING")])
        assert (watch.record.waiting_since is not None) is waits, source
