"""`mpsguard` and `mpsguard-ctl` as a user meets them: tables, JSON, exit codes, one line for every mistake."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mpsguard.cli.ctl import COMMANDS
from tests.harness.guard_process import REPOSITORY
from tests.integration.guarded import Guarded


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        running.client().expect("started")
        yield running


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[guard]\ngroup = 'no-such-group'", "guard.group"),
        ("[guard]\nrun_directory = '/proc/1/x'", "guard.run_directory"),
        ("[guard]\nstate_directory = '/etc/passwd'", "guard.state_directory"),
        ("[guard]\nlog_directory = '/etc/passwd/logs'", "guard.log_directory"),
    ],
)
@pytest.mark.parametrize("command", ["check-config", "serve"])
def test_what_this_machine_cannot_do_is_refused_before_anything_starts(
    tmp_path: Path, text: str, says: str, command: str
) -> None:
    config = tmp_path / "mpsguard.toml"
    config.write_text(f"{text}\n[[domain]]\npipe_directory = '{tmp_path}/pub'\ncontrol_binary = '/bin/true'\n")
    refused = serve(command, "--config", str(config))
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"mpsguard: {says}:")
    assert refused.stderr.count("\n") == 1
    assert not (tmp_path / "pub").exists()


def test_a_file_can_be_checked_for_another_machine(tmp_path: Path) -> None:
    config = tmp_path / "mpsguard.toml"
    config.write_text("[guard]\ngroup = 'no-such-group'\n[[domain]]\ncontrol_binary = '/no/such/file'\n")
    assert serve("check-config", "--config", str(config)).returncode == 2
    assert serve("check-config", "--portable", "--config", str(config)).returncode == 0


def test_run_without_a_command_says_so() -> None:
    done = serve("run", "--standby", "1")
    assert done.returncode == 125
    assert "-- CMD" in done.stderr


def test_run_without_a_guard_names_the_directory_that_is_served(guarded: Guarded) -> None:
    command = [sys.executable, "-m", "mpsguard.cli.guard", "run", "--pipe-directory", "/nonexistent/mps", "--", "true"]
    named = {**guarded.environment, "CUDA_MPS_PIPE_DIRECTORY": str(guarded.public)}
    done = subprocess.run(command, env=named, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0
    assert f"--pipe-directory {guarded.public}" in done.stderr


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-m", "mpsguard.cli.guard", *arguments]
    return subprocess.run(program, cwd=REPOSITORY, capture_output=True, text=True, timeout=30, check=False)


@pytest.mark.parametrize("arguments", [("status",), ("clients",), ("lanes",), ("events",), ("metrics",)])
def test_json_before_or_behind_the_command_and_a_table_without(guarded: Guarded, arguments: tuple[str, ...]) -> None:
    before, behind = guarded.ctl("--json", *arguments), guarded.ctl(*arguments, "--json")
    for said in (before, behind):
        assert said.returncode == 0
        for line in said.stdout.splitlines():
            json.loads(line)
    plain = guarded.ctl(*arguments)
    assert plain.returncode == 0
    with pytest.raises(json.JSONDecodeError):
        json.loads(plain.stdout)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(guarded: Guarded, name: str) -> None:
    said = guarded.ctl(name, "--help")
    assert said.returncode == 0
    assert len(said.stdout.splitlines()) > 3


@pytest.mark.parametrize(
    "arguments", [("no-such-command",), ("terminate",), ("terminate", "x"), ("--deadline", "0", "status")]
)
def test_wrong_usage_is_exit_2(guarded: Guarded, arguments: tuple[str, ...]) -> None:
    assert guarded.ctl(*arguments).returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("--json", "no-such-command"),
        ("--json", "terminate"),
        ("terminate", "x", "--json"),
        ("--json", "--deadline", "0", "status"),
        ("status", "--json", "--no-such-option"),
    ],
)
def test_wrong_usage_with_json_is_a_document(guarded: Guarded, arguments: tuple[str, ...]) -> None:
    refused = guarded.ctl(*arguments)
    assert refused.returncode == 2
    assert not refused.stderr
    error = json.loads(refused.stdout)["error"]
    assert error["exit_code"] == 2
    assert error["message"]


def test_an_unknown_domain_is_named_with_those_there_are(guarded: Guarded) -> None:
    refused = guarded.ctl("clients", "--domain", "nowhere")
    assert refused.returncode == 2
    assert "default" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


def test_without_a_guard_every_command_is_exit_5_in_one_line() -> None:
    with Guarded() as unserved:
        for command in ("status", "clients", "lanes", "events", "metrics"):
            said = unserved.ctl(command)
            assert said.returncode == 5
            assert len(said.stderr.splitlines()) == 1


def test_stock_commands_go_through_mps(guarded: Guarded) -> None:
    assert guarded.ctl("mps", "get_default_client_priority").stdout == "0\n"
    assert guarded.ctl("mps", "set_default_active_thread_percentage", "60").stdout == "60.0\n"
    assert guarded.lane()["settings"]["active_thread_percentage"] == 60.0
    assert guarded.json("mps", "get_server_list")["exit_status"] == 0
    assert guarded.ctl("mps", "a\nb").returncode == 2


def test_events_are_followed(guarded: Guarded) -> None:
    program = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory), "--json"]
    following = guarded.program([*program, "events", "--follow", "--lines", "1"])
    try:
        following.next()
        client = guarded.client("--iterations", "1")
        # If the lane is slow to say that it is ready, it was parked before.
        while (seen := following.next())["kind"] != "client_connected":
            assert seen["kind"] in ("client_parked", "client_unparked")
        assert seen["data"]["pid"] == client.pid
    finally:
        following.close()


def test_a_command_that_the_control_daemon_does_not_know_fails(guarded: Guarded) -> None:
    assert guarded.ctl("mps", "bogus").returncode == 1
    assert guarded.ctl("mps", "get_server_list").returncode == 0


def test_a_process_that_has_ended_cannot_be_terminated(guarded: Guarded) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    refused = guarded.ctl("--json", "terminate", str(ended.pid))
    assert refused.returncode == 1
    assert json.loads(refused.stdout)["error"]["exit_code"] == 1
    assert str(ended.pid) in json.loads(refused.stdout)["error"]["message"]
    assert refused.stderr == ""


def test_doctor_looks_where_it_is_told_to(guarded: Guarded, tmp_path: Path) -> None:
    def api(*options: str) -> str:
        command = [sys.executable, "-m", "mpsguard.cli.ctl", *options, "--json", "doctor"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)
        return next(str(finding["grade"]) for finding in json.loads(done.stdout) if finding["subject"] == "control API")

    assert api("--run-directory", str(guarded.run_directory)) == "ok"
    assert api("--run-directory", str(tmp_path)) == "problem"
    # Longer than a name may be: looking at it is refused, as in a directory that is closed to this user.
    assert api("--run-directory", str(tmp_path / ("x" * 300))) == "problem"


def test_doctor_finds_what_is_wrong(guarded: Guarded) -> None:
    well = guarded.ctl("doctor", "--config", str(guarded.config), "--json")
    grades = {finding["grade"] for finding in json.loads(well.stdout)}
    assert well.returncode == 0
    assert "problem" not in grades
    with Guarded() as unserved:
        ill = unserved.ctl("doctor", "--config", str(unserved.config), "--json")
        assert ill.returncode == 3


def test_doctor_tells_another_guard_s_lane_from_a_stock_daemon_and_names_no_command_that_ends_it(
    guarded: Guarded,
) -> None:
    def told(doctored: Guarded) -> list[dict[str, str]]:
        found = json.loads(doctored.ctl("doctor", "--config", str(doctored.config), "--json").stdout)
        return [each for each in found if str(guarded.run_directory) in each["text"] + each["fix"]]

    with Guarded() as unserved:
        (lane,) = told(unserved)
        assert (lane["subject"], lane["grade"]) == ("another guard's lane", "note")
        assert f"process {guarded.guard.pid} " in lane["text"]
        assert "quit" not in lane["fix"]
        guarded.kill()
        (lane,) = told(unserved)
        assert (lane["subject"], lane["grade"]) == ("another guard's lane", "note")
        assert "no guard runs" in lane["text"]
        guarded.start()


@pytest.mark.parametrize("command", ["serve", "check-config"])
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[guard]\nfoo = 1", ("guard.foo", "allowed here")),
        ("[[domain]]\ncontrol_binary = '/no/such/file'", ("control_binary", "/no/such/file")),
        ("nonsense", ("not valid TOML",)),
    ],
)
def test_a_wrong_configuration_starts_nothing(
    guarded: Guarded, command: str, text: str, words: tuple[str, ...]
) -> None:
    path = guarded.root / "wrong.toml"
    path.write_text(text)
    refused = serve(command, "--config", str(path))
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert all(word in refused.stderr for word in words)


def test_a_missing_file_is_a_wrong_configuration() -> None:
    refused = serve("serve", "--config", "/no/such/file.toml")
    assert refused.returncode == 2
    assert "/no/such/file.toml" in refused.stderr
