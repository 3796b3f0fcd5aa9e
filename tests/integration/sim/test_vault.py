"""The vault in the guard itself: served beside everything else, seen and released by `mpsguard-ctl`."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fault_injection.holders import holders
from mpsguard.client import Chunk, LeaseHeldError, LeaseRole, Session, UnknownSessionError
from mpsguard.images import checkpoints
from mpsguard.images.store.store import ImageStore
from mpsguard.vault.client.mapped import HostBackend, create
from mpsguard.vault.wire.latency_counts import LatencyCounts
from tests.harness.guard_process import REPOSITORY
from tests.harness.waiting import wait_for
from tests.integration.guarded import Guarded


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as running:
        running.start()
        yield running
        # What the test has put there is released; the holder then ends with its guard.
        running.stop()


def socket(guarded: Guarded) -> str:
    return str(guarded.run_directory / "vault.sock")


def ctl(guarded: Guarded, *arguments: str) -> tuple[int, Any]:
    command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory), "--json"]
    done = subprocess.run([*command, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def test_an_unused_vault_has_no_second_process(guarded: Guarded) -> None:
    assert ctl(guarded, "vault", "list")[1]["sessions"] == []
    assert holders(guarded.run_directory) == []


def test_regions_are_seen_kept_through_a_sigkill_and_released_by_command(guarded: Guarded) -> None:
    fd = os.memfd_create("chunk")
    os.ftruncate(fd, 1 << 20)
    uid = str(os.getuid())
    with Session("work", socket=socket(guarded), keep=None, deadline=30) as writer:
        writer.create("weights", [Chunk(fd, 1 << 20)], va=1 << 40)
        writer.publish(b"state")
        assert guarded.metric("mpsguard_vault_regions_made_total") == 1
        assert guarded.metric("mpsguard_vault_bytes") == 1 << 20
        _, listed = ctl(guarded, "vault", "list")
        assert listed["sessions"][0]["writer"] == os.getpid()
        assert (listed["counters"]["regions"], listed["counters"]["bytes"]) == (1, 1 << 20)
        guarded.kill()
        guarded.start()
        _, shown = ctl(guarded, "vault", "show", uid, "work")
        assert shown["regions"][0]["layout"] == {"sizes": [1 << 20], "va": 1 << 40, "gpu": None}
        assert (shown["sequence"], shown["state_bytes"]) == (1, 5)
        assert "token" not in json.dumps(shown)
        with Session("work", socket=socket(guarded), role=LeaseRole.READER) as reader, reader.open("weights"):
            code, said = ctl(guarded, "vault", "release", uid, "work", "weights")
            assert code == 1
            message = said["error"]["message"]
            assert "is held by process" in message
            assert message.endswith("; end it first, or release with --force")
        assert writer.describe("weights").generation == 1
    code, _ = ctl(guarded, "vault", "release", uid, "work")
    assert code == 0
    with pytest.raises(UnknownSessionError):
        Session("work", socket=socket(guarded), role=LeaseRole.READER)
    os.close(fd)


def test_marked_requests_are_shown_and_survive_a_sigkill_of_the_guard(guarded: Guarded) -> None:
    uid = str(os.getuid())
    with Session("work", socket=socket(guarded), keep=None, deadline=30) as writer:
        assert ctl(guarded, "vault", "show", uid, "work")[1]["latency"] is None
        latency = writer.latency()
        latency.record(0.010)
        guarded.kill()
        latency.record(0.010)
        guarded.start()
        _, shown = ctl(guarded, "vault", "show", uid, "work")
        counts = msgspec.convert(shown["latency"], LatencyCounts)
        assert counts.requests() == 2
        assert counts.percentile(0.99) == pytest.approx(0.010, rel=0.021)
        command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory)]
        said = subprocess.run(
            [*command, "vault", "show", uid, "work"], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        assert re.search(r"^requests: 2, p50 \d[\d.]* ms, p99 \d[\d.]* ms$", said.stdout, re.MULTILINE)
        writer.release()


def test_force_releases_what_is_mapped_and_its_users_keep_their_own(guarded: Guarded) -> None:
    fd = os.memfd_create("chunk")
    os.pwrite(fd, b"content", 0)
    with (
        Session("work", socket=socket(guarded)) as writer,
        Session("work", socket=socket(guarded), role=LeaseRole.READER) as reader,
    ):
        writer.create("r", [Chunk(fd, 7)])
        region = reader.open("r")
        with pytest.raises(LeaseHeldError):
            writer.release("r")
        assert ctl(guarded, "vault", "release", "--force", str(os.getuid()), "work", "r")[0] == 0
        assert list(writer.names()) == []
        assert os.pread(region.fds[0], 7, 0) == b"content"
        region.close()
        reader.close()
        writer.release()
    os.close(fd)


def test_a_vault_can_be_switched_off() -> None:
    with Guarded() as guarded:
        guarded.config.write_text(guarded.config.read_text() + "\n[vault]\nenabled = false\n")
        guarded.start()
        assert not Path(socket(guarded)).exists()
        code, said = ctl(guarded, "vault", "list")
        assert code == 1
        assert "switched off" in said["error"]["message"]


def test_a_dead_guards_holder_is_ended_with_the_last_session() -> None:
    with Guarded() as guarded:
        guarded.start()
        with Session("work", socket=socket(guarded)) as writer:
            [pid] = holders(guarded.run_directory)
            writer.release()
        assert guarded.stop() == 0
        wait_for("the holder's end", lambda: not Path(f"/proc/{pid}").exists())


def test_a_program_is_asked_for_a_checkpoint(guarded: Guarded, tmp_path: Path) -> None:
    uid = str(os.getuid())
    with Session("work", socket=socket(guarded), deadline=30) as writer:
        with create(writer, HostBackend(), "state", 1 << 20) as memory:
            memory.view().write(os.urandom(1 << 20))
            writer.publish(b"before")
            code, said = ctl(guarded, "vault", "checkpoint", uid, "work", "asked")
            assert code == 1
            assert "takes no checkpoints" in said["error"]["message"]
            checkpoints.of(writer, store=tmp_path / "store", buffers=64 << 20)
            # The page is made with the next publication.
            writer.publish(b"1")
            assert ctl(guarded, "vault", "checkpoint", uid, "work", "../bad")[0] == 2
            assert ctl(guarded, "vault", "checkpoint", uid, "work", "asked")[1]["number"] == 1

            def told() -> bool:
                # The writer hears of its checkpoint's end when it publishes.
                writer.publish(b"next")
                shown = ctl(guarded, "vault", "show", uid, "work")[1]["checkpoint"]
                return shown is not None and (shown["image"], shown["state"]) == ("asked", "committed")

            wait_for("the checkpoint", told)
            assert names(tmp_path / "store") == ["asked"]
            command = [sys.executable, "-m", "mpsguard.cli.ctl", "--run-directory", str(guarded.run_directory)]
            command += ["vault", "show", uid, "work"]
            lines = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
            assert "checkpoint: asked: committed" in lines
            assert "asked for: " not in lines
            checkpoints.of(writer).take("own").wait()
            shown = ctl(guarded, "vault", "show", uid, "work")[1]
            assert [shown[key]["image"] for key in ("checkpoint", "requested_checkpoint")] == ["own", "asked"]
            lines = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
            assert "checkpoint: own: committed" in lines
            assert "asked for: asked: committed" in lines
        writer.release()
    code, said = ctl(guarded, "vault", "checkpoint", uid, "work", "asked")
    assert code == 1
    assert said["error"]["message"].endswith("there is no session 'work'")


def names(store: Path) -> list[str]:
    with ImageStore(store) as images:
        return images.names()
