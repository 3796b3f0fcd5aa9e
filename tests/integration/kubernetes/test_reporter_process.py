"""The reporter as a process: what it is started with, how it ends."""

import http.client
import os
import signal
import subprocess
import sys
from http import HTTPStatus
from pathlib import Path

import pytest

from mpsguard.guard.pods import Pod, PodContainer
from tests.harness.free_port import free_port
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded
from tests.integration.kubernetes.api_server import api_server
from tests.integration.kubernetes.pod_cgroup import client_in, pod_cgroup

POD = Pod("2f5a1c4e-1111-4222-8333-444455556666", "team-a", "train-0", (PodContainer("c" * 64, "worker"),))
COMMAND = [sys.executable, "-m", "mpsguard.cli.guard", "kubernetes-reporter"]


def scraped(port: int) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_the_reporter_goes_round_and_ends_in_order(tmp_path: Path) -> None:
    with Guarded() as guarded, api_server([POD]) as server, pod_cgroup(POD, POD.containers[0]) as cgroup:
        guarded.start()
        client = client_in(cgroup, guarded)
        client.expect("started")
        arguments = {
            "--node": "node-1",
            "--run-directory": guarded.run_directory,
            "--state-directory": tmp_path / "state",
            "--pod-resources": tmp_path / "no-kubelet.sock",
            "--kubeconfig": server.kubeconfig(tmp_path),
            "--interval": 1,
            "--metrics-host": "127.0.0.1",
            "--metrics-port": (port := free_port()),
        }
        reporter = subprocess.Popen(
            [*COMMAND, *(str(word) for pair in arguments.items() for word in pair)],
            cwd=REPOSITORY,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_for("the pod", lambda: guarded.asked("clients")["pods"] != [None])
            status, metrics = scraped(port)
            assert status == HTTPStatus.OK
            assert 'pod="train-0"' in metrics
            guarded.kill()
            assert scraped(port)[0] == HTTPStatus.SERVICE_UNAVAILABLE, "Prometheus takes the guard for well"
            reporter.send_signal(signal.SIGTERM)
            _, said = reporter.communicate(timeout=30)
        finally:
            reporter.kill()
            client.close()
    assert reporter.returncode == 0, said
    # A missing kubelet is said once, and keeps no pod from being named.
    assert said.count("kubelet_not_asked") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "not in a pod of Kubernetes"),
        ("", "not the form"),
        ("{", "kubeconfig"),
        ("clusters: []", "contexts is missing"),
        ("{clusters: [], contexts: []}", "current context"),
    ],
)
def test_without_a_way_to_the_api_server_it_says_so_in_one_line(tmp_path: Path, content: str | None, said: str) -> None:
    more = []
    if content is not None:
        (tmp_path / "kubeconfig").write_text(content)
        more = ["--kubeconfig", str(tmp_path / "kubeconfig")]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("KUBERNETES_")}
    done = subprocess.run(
        [*COMMAND, "--node", "node-1", *more],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
