"""Chart and manifests: rendered and linted by the real helm, judged by the schemas of Kubernetes.

There is no kube-apiserver here that would take them: the manifests are validated, not applied.
"""

import os
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import mpsguard
from mpsguard.cli.kubernetes_reporter import kubernetes_reporter
from mpsguard.guard.config import load
from mpsguard.guard.config.types import DomainConfig
from mpsguard.guard.dropin import plugin_config
from tests.harness.guard_process import REPOSITORY
from tests.integration.kubernetes.api_server import GRANTED
from tests.integration.kubernetes.helm import CHART, HELM, KUBERNETES, helm, needs_helm, rendered

MANIFESTS = KUBERNETES / "manifests"
TWO_PODS, DEVICE_PLUGIN = KUBERNETES / "two-pods.yaml", KUBERNETES / "device-plugin.yaml"
"""Shown in docs/guides/kubernetes.md."""
OLDEST, NEWEST = "1.25", "1.37"
"""Versions of Kubernetes; the oldest is that of the chart's kubeVersion."""
OF_PROMETHEUS = ("ServiceMonitor", "PrometheusRule")
EVERYTHING = (
    "guardInPod.enabled=true",
    "metrics.rules.enabled=true",
    "metrics.serviceMonitor.enabled=true",
    "namespace.create=true",
    "reporter.nvsentinel.enabled=true",
    "reporter.seLinuxOptions.type=spc_t",
    "priorityClassName=system-node-critical",
    "image.pullSecrets[0].name=registry",
)


def of_kind(objects: list[dict[str, Any]], kind: str, name: str | None = None) -> dict[str, Any]:
    (found,) = [each for each in objects if each["kind"] == kind and name in (None, each["metadata"]["name"])]
    return found


def containers(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        container
        for each in objects
        if each["kind"] == "DaemonSet"
        for container in each["spec"]["template"]["spec"]["containers"]
    ]


@needs_helm
def test_the_chart_is_clean() -> None:
    done = helm("lint", "--strict", CHART)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
def test_the_manifests_are_what_the_chart_makes(tmp_path: Path) -> None:
    assert HELM is not None
    environment = {**os.environ, "PATH": f"{Path(HELM).parent}:{os.environ['PATH']}"}
    subprocess.run([REPOSITORY / "scripts" / "kubernetes-manifests", tmp_path], check=True, env=environment, timeout=60)
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_text() for path in MANIFESTS.iterdir()}


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("name", sorted(path.name for path in MANIFESTS.iterdir()))
def test_the_manifests_are_valid(name: str, version: str) -> None:
    objects = list(yaml.safe_load_all((MANIFESTS / name).read_text()))
    assert objects
    validate([each for each in objects if each is not None], version)


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_the_two_pods_of_the_guide_are_valid(version: str) -> None:
    objects = list(yaml.safe_load_all(TWO_PODS.read_text()))
    validate(objects, version)
    assert [each["kind"] for each in objects] == ["Namespace", "StatefulSet"]
    namespace, pods = objects
    assert pods["metadata"]["namespace"] == namespace["metadata"]["name"]
    # Pod Security allows host paths at this level alone.
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"
    spec = pods["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
    directories = {each["name"]: each["hostPath"]["path"] for each in spec["volumes"]}
    assert all(directories[each["name"]] == each["mountPath"] for each in container["volumeMounts"])
    # Where a guard serves by default.
    pipe_directory = {each["name"]: each["value"] for each in container["env"]}["CUDA_MPS_PIPE_DIRECTORY"]
    assert pipe_directory == directories["mps"] == DomainConfig().pipe_directory
    assert "privileged" not in container["securityContext"]


def test_the_device_plugin_of_the_guide_starts_no_mps() -> None:
    assert plugin_config.load(DEVICE_PLUGIN).wanted is None


@pytest.mark.parametrize("file", [TWO_PODS, DEVICE_PLUGIN], ids=lambda file: file.name)
def test_the_guide_shows_the_files(file: Path) -> None:
    page = (REPOSITORY / "docs" / "guides" / "kubernetes.md").read_text()
    assert textwrap.indent(f"```yaml\n{file.read_text()}```\n", "   ", lambda line: line != "\n") in page


@needs_helm
@pytest.mark.parametrize(
    "settings",
    [(), EVERYTHING, ("metrics.enabled=false", "reporter.events.enabled=false")],
    ids=["default", "everything", "least"],
)
def test_the_chart_is_valid_whatever_is_chosen(settings: tuple[str, ...]) -> None:
    objects = rendered(*settings)
    validate(objects, NEWEST)
    for container in containers(objects):
        names = {each["name"] for each in container["volumeMounts"]}
        assert len(names) == len(container["volumeMounts"])


def test_a_misspelt_key_is_found() -> None:
    # Else the tests above would show nothing.
    objects = list(yaml.safe_load_all((MANIFESTS / "reporter.yaml").read_text()))
    containers(objects)[0]["readinessProbe"]["periodSecond"] = 1
    with pytest.raises(judge().ValidationError):
        validate(objects, NEWEST)


def judge() -> Any:
    """The library with the schemas, imported on first use: an import takes seconds in every worker."""
    import kubernetes_validate  # noqa: PLC0415 - see above

    return kubernetes_validate


def validate(objects: list[dict[str, Any]], version: str) -> None:
    for each in objects:
        if each["kind"] not in OF_PROMETHEUS:
            judge().validate(each, version, strict=True)


@needs_helm
@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("reporter.interval=0", "interval"),
        ("reporter.events.names=some", "names"),
        ("reporter.intervall=5", "intervall"),
        ("runDirectory=run", "runDirectory"),
        ("metrics.port=70000", "port"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(setting: str, said: str) -> None:
    done = helm("template", "mpsguard", CHART, "--set", setting)
    assert done.returncode != 0
    assert said in done.stderr


@needs_helm
def test_the_role_grants_what_the_reporter_asks_for_and_nothing_else() -> None:
    def granted(*settings: str) -> set[tuple[str, str, str]]:
        return {
            (verb, group, resource)
            for rule in of_kind(rendered(*settings), "ClusterRole")["rules"]
            for verb in rule["verbs"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
        }

    # The simulated API server refuses all else, and the reporter's tests pass with it.
    assert granted() == GRANTED
    assert granted("reporter.events.enabled=false") == {("list", "", "pods")}


@needs_helm
def test_the_reporter_has_no_right_on_the_node_but_its_files() -> None:
    pod = of_kind(rendered(*EVERYTHING), "DaemonSet", "mpsguard-reporter")["spec"]["template"]["spec"]
    assert not pod["hostPID"]
    assert not pod.get("hostNetwork")
    assert not pod.get("hostIPC")
    (container,) = pod["containers"]
    security = container["securityContext"]
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert security["readOnlyRootFilesystem"]
    assert security["capabilities"] == {"drop": ["ALL"]}
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/var/lib/mpsguard/kubernetes-reporter"}


@needs_helm
@pytest.mark.parametrize("settings", [(), EVERYTHING, ("metrics.enabled=false", "reporter.events.enabled=false")])
def test_the_reporter_takes_the_arguments_that_it_is_given(settings: tuple[str, ...]) -> None:
    pod = of_kind(rendered(*settings), "DaemonSet", "mpsguard-reporter")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["command"] == ["mpsguard", "kubernetes-reporter"]
    with kubernetes_reporter.make_context("reporter", [*container["args"], "--node=n"]) as context:
        assert isinstance(context, click.Context)
        assert context.params["interval"] == 10
        assert (context.params["nvsentinel"] is not None) == (settings == EVERYTHING)
        assert context.params["events"] == ("reporter.events.enabled=false" not in settings)
    mounted = [Path(each["mountPath"]) for each in container["volumeMounts"]]
    paths = [Path(value) for each in container["args"] if (value := each.partition("=")[2]).startswith("/")]
    assert paths
    for path in paths:
        assert any(path.is_relative_to(mount) for mount in mounted), path


@needs_helm
def test_a_guard_in_a_pod_sees_the_processes_of_the_host_and_is_probed_by_check(tmp_path: Path) -> None:
    objects = rendered("guardInPod.enabled=true")
    pod = of_kind(objects, "DaemonSet", "mpsguard-guard")["spec"]["template"]["spec"]
    assert pod["hostPID"]
    (container,) = pod["containers"]
    for probe, purpose in (("startupProbe", "ready"), ("readinessProbe", "ready"), ("livenessProbe", "live")):
        command = container[probe]["exec"]["command"]
        assert command[0] == "mpsguard-ctl"
        assert command[-2:] == ["check", f"--for={purpose}"]
        (deadline,) = [float(each.partition("=")[2]) for each in command if each.startswith("--deadline=")]
        # A second for the way, and the start of the program.
        assert container[probe]["timeoutSeconds"] >= deadline + 3
    file = tmp_path / "mpsguard.toml"
    file.write_text(of_kind(objects, "ConfigMap")["data"]["mpsguard.toml"])
    settings = load(file)
    mounted = {each["mountPath"] for each in container["volumeMounts"]}
    guard = settings.guard
    wanted = {guard.run_directory, guard.state_directory, guard.log_directory, settings.domain[0].pipe_directory}
    assert mounted >= wanted | {"/dev/shm"}


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == mpsguard.__version__


@needs_helm
def test_the_rules_are_those_that_promtool_checks() -> None:
    rule = of_kind(rendered("metrics.rules.enabled=true"), "PrometheusRule")
    source = REPOSITORY / "examples" / "monitoring" / "mpsguard.rules.yml"
    assert rule["spec"] == yaml.safe_load(source.read_text())
