"""`mpsguard-ctl image` as a user meets it: tables, JSON, exit codes, one line for every mistake; no guard runs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.numpy as safetensors_numpy
from click.testing import CliRunner, Result

from mpsguard.cli import ctl
from mpsguard.images.store.store import ImageStore
from tests.harness.guard_process import REPOSITORY
from tests.unit.images.store.samples import commit, some_bytes

CTL = [sys.executable, "-m", "mpsguard.cli.ctl"]
LONG = "x" * 300


class User:
    """Someone with a store of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.store = home / ".local" / "share" / "mpsguard" / "images"
        self.environment: dict[str, str | None] = {"HOME": str(home), "XDG_DATA_HOME": None}

    def run(self, *arguments: object, code: int = 0, stdin: bytes = b"") -> Result:
        """In this process, which is what makes dozens of commands cheap."""
        done = CliRunner().invoke(ctl.main, ["image", *map(str, arguments)], input=stdin, env=self.environment)
        assert done.exit_code == code, done.output
        return done

    @property
    def variables(self) -> dict[str, str]:
        """For a process."""
        changed = {name: value for name, value in self.environment.items() if value is not None}
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), **changed}

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self.run(*arguments, "--json", code=code).stdout)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path / "user")


@pytest.fixture
def other(tmp_path: Path) -> User:
    return User(tmp_path / "other")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "llm.v1.safetensors"
    tensors: dict[str, Any] = {
        "w": numpy.arange(700_000, dtype="float32").reshape(700, 1000),
        "b": numpy.ones(3, dtype="int8"),
    }
    safetensors_numpy.save_file(tensors, path, metadata={"format": "pt"})
    return path


def test_from_a_file_to_another_machine_and_back_to_a_file(
    user: User, other: User, weights: Path, tmp_path: Path
) -> None:
    assert user.json("list")["images"] == []
    assert not user.home.exists()
    assert user.json("import", "llm/1", weights) == {
        "name": "llm/1",
        "tensors": 2,
        "bytes": 4 << 20,
        "written_bytes": 4 << 20,
    }
    assert re.search(r"^llm/1 .* 2 +4 ", user.run("list").stdout, re.MULTILINE)
    assert "w        F32    [700, 1000]" in user.run("show", "llm/1").stdout
    (region,) = user.json("show", "llm/1")["regions"]
    assert (region["name"], region["bytes"], region["pieces"]) == ("llm.v1", 4 << 20, 2)
    command = [*CTL, "image", "push", "llm/1"]
    stream = subprocess.run(command, env=user.variables, capture_output=True, timeout=60, check=True).stdout
    pulled = other.run("pull", "--json", stdin=stream)
    assert json.loads(pulled.stdout) == {"name": "llm/1", "pieces": 2, "bytes": 4 << 20, "spared": 0}
    assert "llm/1: 4194304 bytes, all as they were stored" in other.run("verify").stdout
    other.run("export", "llm/1", tmp_path / "out.safetensors")
    assert (tmp_path / "out.safetensors").read_bytes() == weights.read_bytes()
    assert other.run("remove", "llm/1").stdout == "removed llm/1; freed 4 MiB\n"
    assert other.json("list")["images"] == []
    assert [path for path in other.store.rglob("*") if path.is_file() and path.parent != other.store] == []


@pytest.fixture
def listening(other: User) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """`image pull --listen`, where, and its secret."""
    command = [*CTL, "image", "pull", "--listen", "127.0.0.1:0", "--json", "--wait", "30"]
    with subprocess.Popen(
        command, env=other.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            address = process.stderr.readline().removeprefix("listening on ").strip()
            yield process, address, process.stderr.readline().removeprefix("secret: ").strip()
        finally:
            process.kill()


def test_over_a_socket_what_is_there_is_not_sent(
    user: User, other: User, weights: Path, listening: tuple[subprocess.Popen[str], str, str], tmp_path: Path
) -> None:
    receiver, address, secret = listening
    file = tmp_path / "secret"
    file.write_text(secret + "\n")
    user.run("import", "llm", weights)
    other.run("import", "base", weights)
    sent = user.json("push", "llm", "--to", address, "--secret-file", file)
    received, _ = receiver.communicate(timeout=30)
    assert receiver.returncode == 0
    assert sent == json.loads(received) == {"name": "llm", "pieces": 0, "bytes": 0, "spared": 4 << 20}
    other.run("verify", "llm")


def test_a_damaged_image_is_named_and_healed_by_the_next_import(user: User, weights: Path) -> None:
    user.run("import", "llm", weights)
    damaged, *_ = sorted(path for path in (user.store / "pieces").rglob("*") if path.is_file())
    damaged.chmod(0o600)
    damaged.write_bytes(b"\xff" + damaged.read_bytes()[1:])
    damaged.chmod(0o400)
    assert f"piece {damaged.name} of region llm.v1 is damaged" in user.run("verify", code=3).stdout
    (found,) = user.json("verify", "llm", code=3)["images"]
    assert [damage["digest"] for damage in found["damages"]] == [damaged.name]
    refused = user.run("export", "llm", user.home / "out", code=3).stderr
    assert refused == f"mpsguard-ctl: image llm: piece {damaged.name} of region llm.v1 is damaged\n"
    user.run("import", "again", weights)
    user.run("verify")


def test_a_damaged_manifest(user: User, weights: Path) -> None:
    user.run("import", "llm", weights)
    user.run("import", "other", weights)
    (user.store / "images" / "llm.json").write_bytes(b"\0" * 1000)
    assert "cannot be read" in user.run("list").stdout
    assert [image["error"] is None for image in user.json("list")["images"]] == [False, True]
    assert "its manifest is damaged" in user.run("verify", code=3).stdout
    user.run("show", "llm", code=3)
    # What it needs is unknown: nothing is freed before it is removed.
    refused = user.run("remove", code=3).stderr
    assert (
        refused == "mpsguard-ctl: what no image needs was not freed: image llm: its manifest is damaged (first line)\n"
    )
    assert user.json("remove", "other", code=3)["error"]["message"].startswith("removed other; ")
    assert [image["name"] for image in user.json("list")["images"]] == ["llm"]
    assert user.run("remove", "llm").stdout == "removed llm; freed 4 MiB\n"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["show", "nope"], 6, "there is no image nope in "),
        (["remove", "llm", "nope"], 6, "there is no image nope in "),
        (["verify", "nope"], 6, "there is no image nope in "),
        (["export", "nope", "x"], 6, "there is no image nope in "),
        (["push", "nope"], 6, "there is no image nope in "),
        (["push", "llm", "--have", "nope"], 6, "there is no image nope in "),
        (["show", "../llm"], 2, "'../llm' is no name of an image"),
        (["import", "llm", "{weights}"], 1, "there is an image llm already; --replace"),
        (["import", "b", "{store}/version"], 1, "no file of safetensors"),
        (["import", "b", "/nonexistent"], 1, "/nonexistent: No such file"),
        (["import", "b", "{weights}", "{weights}"], 2, "the same name, and would be one region: llm.v1"),
        (["import", "b", "{weights}", "{other}"], 1, "other.safetensors: tensor 'w' is in "),
        (["export", "llm", "{weights}"], 1, "is there already; --replace"),
        (["export", "llm", "/nonexistent/x"], 1, "/nonexistent/x: No such file"),
        (["export", "llm", "-"], 2, "not to standard output"),
        (["export", "llm", LONG], 1, "File name too long"),
        (["export", "llm", "/proc/sys/x"], 1, "/proc/sys/x: "),
        (["export", "llm", "--replace", "{directory}/fifo"], 1, "fifo: something is there that is no regular file"),
        (["export", "llm", "--replace", "{directory}"], 1, "something is there that is no regular file"),
        (["export", "bytes", "x"], 1, "there is no tensor in it"),
        (["pull"], 1, "the stream broke off"),
        (["push", "llm", "--to", "127.0.0.1:1"], 2, "MPSGUARD_IMAGE_SECRET"),
        (["push", "llm", "--to", "127.0.0.1:1", "--secret-file", "{weights}"], 1, "127.0.0.1:1: Connection refused"),
        (["push", "llm", "--to", "127.0.0.1:1", "--secret-file", "/nowhere"], 1, "/nowhere: No such file"),
        (["push", "llm", "--to", "192.0.2.1:1"], 1, "--unprotected"),
        (["pull", "--listen", "0.0.0.0:0"], 1, "--unprotected"),
        (["pull", "--listen", "127.0.0.1:0", "--wait", "0.1"], 1, "no peer with the secret connected to 127.0.0.1:0"),
        (["list", "--store", "/proc"], 1, "/proc: "),
        (["list", "--store", "/nowhere"], 6, "no store of images at /nowhere"),
        (["list", "--store", "{weights}"], 1, "Not a directory"),
        (["list", "--store", LONG], 1, "File name too long"),
    ],
)
def test_mistakes_are_one_line(user: User, weights: Path, arguments: list[str], code: int, says: str) -> None:
    user.run("import", "llm", weights)
    with ImageStore(user.store) as store:
        commit(store, "bytes", {"r": some_bytes("r", 100)})
    before = sorted((user.store / "images").iterdir())
    other = weights.with_name("other.safetensors")
    other.write_bytes(weights.read_bytes())
    os.mkfifo(weights.with_name("fifo"))
    filled = [
        argument.format(weights=weights, store=user.store, directory=weights.parent, other=other)
        for argument in arguments
    ]
    lines = user.run(*filled, code=code).stderr.splitlines()
    assert [
        line.startswith("mpsguard-ctl: ") for line in lines if not line.startswith(("listening on ", "secret: "))
    ] == [True]
    assert says in lines[-1]
    if "push" not in arguments or "--to" in arguments:
        assert says in user.json(*filled, code=code)["error"]["message"]
    assert sorted((user.store / "images").iterdir()) == before
    assert weights.with_name("fifo").is_fifo()


def test_the_environment_says_where_and_how_much(user: User, weights: Path, tmp_path: Path) -> None:
    user.environment["MPSGUARD_IMAGES"] = str(tmp_path / "elsewhere")
    user.environment["MPSGUARD_IMAGES_QUOTA"] = "3M"
    refused = user.run("import", "llm", weights, code=7).stderr
    assert "a quota of 3145728 bytes" in refused
    assert user.json("list") == {"directory": str(tmp_path / "elsewhere"), "images": []}
    user.environment["MPSGUARD_IMAGES_QUOTA"] = "much"
    assert "no whole number with M, G or T" in user.run("import", "llm", weights, code=2).stderr
    user.environment["MPSGUARD_IMAGES"] = "relative"
    assert "no absolute path" in user.run("list", code=2).stderr


def test_without_the_extra_one_line_says_what_to_install(user: User, tmp_path: Path) -> None:
    (tmp_path / "blake3.py").write_text("raise ModuleNotFoundError('no', name='blake3')\n")
    environment = user.variables | {"PYTHONPATH": f"{tmp_path}:{REPOSITORY}"}
    command = [*CTL, "image", "show", "llm", "--store", "x"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    how = f"{sys.executable} -m pip install 'mpsguard[images]'"
    assert done.stderr == f"mpsguard-ctl: image show needs blake3: {how}\n"
    command = [*CTL, "image", "--help"]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "verify  Not available: image verify needs blake3" in shown


def test_a_reader_that_leaves_ends_a_push(user: User, weights: Path) -> None:
    user.run("import", "llm", weights)
    command = [*CTL, "image", "push", "llm"]
    with subprocess.Popen(
        command, env=user.variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as push:
        assert push.stdout is not None
        push.stdout.close()
        assert push.stderr is not None
        assert push.stderr.read() == "mpsguard-ctl: the receiver is gone: Broken pipe\n"
        assert push.wait(30) == 1
