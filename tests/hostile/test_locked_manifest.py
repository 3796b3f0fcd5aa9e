"""A user that may read an image of another user's store, and locks it by every means that reading allows."""

import subprocess
import sys
import time
from pathlib import Path

from mpsguard.images.store.store import ImageStore
from tests.unit.images.store.samples import commit

LOCK = """
import fcntl, os, struct, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
try:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
except OSError:
    print("locked", flush=True)
sys.stdin.read()
"""
OPEN_WITHIN = 25.0
"""Seconds; each of the calls that waited for a lock would take its deadline (30 s)."""


def test_the_owner_opens_replaces_and_collects_its_image(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with ImageStore(path) as store:
        commit(store, "a", {"weights": b"before"})
        (manifest,) = (path / "images").iterdir()
        with subprocess.Popen(
            [sys.executable, "-c", LOCK, str(manifest)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "locked\n"
            began = time.monotonic()
            with store.open("a") as image:
                assert image.manifest.regions[0].size == len(b"before")
                commit(store, "a", {"weights": b"after it"})
                # It is open here, and there.
                assert store.collect().images == 0
            assert store.collect().images == 0
            assert time.monotonic() - began < OPEN_WITHIN
            reader.communicate("")
        assert store.collect().images == 1
