"""Files that are watched by one descriptor: each is told of its own."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final

import pytest

from mpsguard.linux.files.inotify import FileWatch
from tests.harness.open_descriptors import open_descriptors, opened_since
from tests.harness.waiting import until

QUEUE: Final = Path("/proc/sys/fs/inotify/max_queued_events")


class Told:
    """How often a watch has called."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def scenario(body: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(body())


def append(path: Path) -> None:
    with path.open("a") as file:
        file.write("more\n")


def test_each_is_told_of_its_own_file(tmp_path: Path) -> None:
    async def body() -> None:
        before = open_descriptors()
        paths = [tmp_path / "a", tmp_path / "b"]
        told = [Told(), Told()]
        for path in paths:
            path.touch()
        watches = [FileWatch(path, each) for path, each in zip(paths, told, strict=True)]
        assert len(opened_since(before)) == 1
        append(paths[1])
        await until(lambda: told[1].count > 0)
        assert told[0].count == 0
        watches[1].close()
        append(paths[1])
        append(paths[0])
        await until(lambda: told[0].count > 0)
        assert told[1].count == 1
        watches[0].close()
        watches[0].close()
        assert opened_since(before) == []

    scenario(body)


def test_two_that_watch_one_file_end_one_by_one(tmp_path: Path) -> None:
    async def body() -> None:
        path = tmp_path / "log"
        path.touch()
        written, closed = Told(), Told()
        first = FileWatch(path, written)
        second = FileWatch(path, closed, closed=True)
        with path.open("a"):
            pass
        await until(lambda: closed.count > 0)
        assert written.count == 0
        second.close()
        append(path)
        await until(lambda: written.count > 0)
        assert closed.count == 1
        first.close()

    scenario(body)


def test_a_file_that_is_gone_is_told_once_and_closed(tmp_path: Path) -> None:
    async def body() -> None:
        before = open_descriptors()
        path = tmp_path / "log"
        path.touch()
        told = Told()
        watch = FileWatch(path, told)
        path.unlink()
        await until(lambda: told.count > 0)
        watch.close()
        assert opened_since(before) == []

    scenario(body)


def test_one_that_cannot_be_watched_leaves_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        before = open_descriptors()
        with pytest.raises(FileNotFoundError):
            FileWatch(tmp_path / "nothing", Told())
        assert opened_since(before) == []

    scenario(body)


def test_all_are_told_if_the_kernel_has_lost_what_was_written(tmp_path: Path) -> None:
    async def body() -> None:
        told = [Told(), Told(), Told()]
        files = [(tmp_path / name).open("w", buffering=1) for name in "abc"]
        watches = [FileWatch(Path(file.name), each) for file, each in zip(files, told, strict=True)]
        # The same record twice in a row is one.
        for i in range(int(QUEUE.read_text()) + 2):
            files[i % 2].write("\n")
        await until(lambda: told[2].count > 0)
        assert all(each.count for each in told)
        for watch, file in zip(watches, files, strict=True):
            watch.close()
            file.close()

    scenario(body)


def test_a_watch_that_another_one_s_call_closes_is_not_told(tmp_path: Path) -> None:
    async def body() -> None:
        paths = [tmp_path / "a", tmp_path / "b"]
        for path in paths:
            path.touch()
        told = Told()
        calls: list[str] = []

        def ends_the_other() -> None:
            calls.append("a")
            other.close()

        first = FileWatch(paths[0], ends_the_other)
        other = FileWatch(paths[1], told)
        append(paths[0])
        append(paths[1])
        await until(lambda: bool(calls))
        await asyncio.sleep(0)
        assert told.count == 0
        first.close()

    scenario(body)
