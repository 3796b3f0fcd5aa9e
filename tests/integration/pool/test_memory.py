"""Images in the memory of a real pool: shared pages, budgets, owners that die, other users, damage."""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner

from mpsguard.cli import ctl
from mpsguard.images.pool.connection import PoolConnection
from mpsguard.images.pool.errors import PoolError
from mpsguard.images.pool.image_memory import key_of
from mpsguard.images.pool.messages import HoldImage, ImageHeld
from mpsguard.images.pool.tiers import Tier
from mpsguard.images.store.store import ImageStore
from tests.harness.waiting import PATIENCE, wait_for
from tests.integration.pool.running import MIB, running
from tests.unit.images.store.samples import some_bytes

HOST_MEMORY = ("--host-memory", "16M", "--gpu-memory", "8M")


def test_several_processes_map_the_same_pages_and_none_can_write_them(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool:
        pool.make("a", 5 * MIB + 3, 100)
        with ExitStack() as held, ImageStore(pool.store) as store:
            image = held.enter_context(store.open("a"))
            connections = [held.enter_context(pool.connect()) for _ in range(3)]
            shared = [held.enter_context(each.hold(store, image)) for each in connections]
            maps = [held.enter_context(each.map("r0")) for each in shared]
            assert all(each[:] == some_bytes(("a", 0), 5 * MIB + 3) for each in maps)
            assert shared[0].map("r1")[:] == some_bytes(("a", 1), 100)
            with pytest.raises(KeyError, match="no region r9; the image has r0, r1"):
                shared[0].map("r9")
            assert len({(os.fstat(each._fd).st_ino) for each in shared}) == 1
            with pytest.raises(TypeError):
                maps[0][0] = 0
            # A descriptor opened anew can be written by its mode; the seal forbids it all the same.
            again = os.open(f"/proc/self/fd/{shared[0]._fd}", os.O_RDWR)
            held.callback(os.close, again)
            with pytest.raises(PermissionError):
                os.pwrite(again, b"x", 0)
            mine = held.enter_context(shared[0].map("r0", private=True))
            mine[0:4] = b"mine"
            assert maps[1][0:4] == some_bytes(("a", 0), 4)
            assert [(each.tier, each.uses, each.whole) for each in pool.listed()] == [(Tier.HOST, 3, True)]
            assert pool.listed()[0].size == 8 * MIB


def test_an_image_that_is_closed_cannot_be_mapped(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ImageStore(pool.store) as store, pool.connect() as mine:
        pool.make("a", 100)
        with store.open("a") as image:
            held = mine.hold(store, image)
            with held.map("r0") as before:
                held.close()
                # Not memory of zeros, which is what the module mmap makes of the descriptor -1.
                with pytest.raises(ValueError, match="closed"):
                    held.map("r0")
                assert before[:] == some_bytes(("a", 0), 100)


def test_images_in_use_stay_and_the_least_recently_used_one_makes_room(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool:
        keys = {name: key_of(pool.make(name, 6 * MIB)) for name in "abc"}
        with ImageStore(pool.store) as store, pool.connect() as mine:
            with store.open("a") as a, store.open("b") as b, store.open("c") as c:
                used, left = mine.hold(store, a), mine.hold(store, b)
                with pytest.raises(PoolError, match="in use"):
                    mine.hold(store, c)
                used.close()
                left.close()
                mine.hold(store, a).close()
                with mine.hold(store, c).map("r0") as content:
                    assert content[:] == some_bytes(("c", 0), 6 * MIB)
            assert [each.key for each in pool.listed()] == [keys["a"], keys["c"]]


def test_what_a_killed_process_held_is_released(tmp_path: Path) -> None:
    program = (
        "import sys,time\n"
        "from pathlib import Path\n"
        "from mpsguard.images.store.store import ImageStore\n"
        "from mpsguard.images.pool.connection import PoolConnection\n"
        "store = ImageStore(Path(sys.argv[1])); image = store.open('a')\n"
        "pool = PoolConnection(); held = pool.hold(store, image)\n"
        "other = PoolConnection(); to_fill = other.hold_on_gpu(store, image) is None\n"
        "print('held', to_fill, flush=True); time.sleep(600)\n"
    )
    with running(tmp_path, *HOST_MEMORY) as pool:
        pool.make("a", 6 * MIB)
        command = [sys.executable, "-c", program, str(pool.store)]
        with subprocess.Popen(command, env=pool.environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "held True\n"
                assert [(each.tier, each.uses) for each in pool.listed()] == [(Tier.GPU, 1), (Tier.HOST, 1)]
            finally:
                process.kill()
        # What was to be filled is not there at all.
        wait_for("the release", lambda: [(each.tier, each.uses) for each in pool.listed()] == [(Tier.HOST, 0)])


def test_memory_of_a_gpu_is_filled_once_and_again_if_the_first_one_leaves(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ExitStack() as held, ThreadPoolExecutor(2) as threads:
        pool.make("a", 6 * MIB)
        store = held.enter_context(ImageStore(pool.store))
        image = held.enter_context(store.open("a"))
        first, second, third = (held.enter_context(pool.connect()) for _ in range(3))
        assert first.hold_on_gpu(store, image) is None
        with pytest.raises(PoolError, match="within"):
            second.hold_on_gpu(store, image, within=0.05)
        waiting = threads.submit(second.hold_on_gpu, store, image)
        first.close()
        assert waiting.result(PATIENCE) is None
        memfd = os.memfd_create("gpu")
        held.callback(os.close, memfd)
        others = threads.submit(third.hold_on_gpu, store, image)
        with pytest.raises(PoolError, match="not asked"):
            held.enter_context(pool.connect()).fill(image, [memfd])
        second.fill(image, [memfd])
        found = others.result(PATIENCE)
        assert found is not None
        assert [os.fstat(fd).st_ino for fd in found] == [os.fstat(memfd).st_ino]
        os.close(found[0])
        second.close()
        third.close()
        wait_for("the release", lambda: [(each.uses, each.whole) for each in pool.listed()] == [(0, True)])


class _BrokenOffError(Exception):
    pass


def test_an_answer_to_a_request_that_was_broken_off_is_not_taken_for_another_ones(tmp_path: Path) -> None:
    def breaks_off(*_: object) -> None:
        raise _BrokenOffError

    with running(tmp_path, *HOST_MEMORY) as pool, ExitStack() as held:
        pool.make("a", MIB)
        pool.make("b", MIB)
        store = held.enter_context(ImageStore(pool.store))
        a, b = (held.enter_context(store.open(name)) for name in "ab")
        first, second = (held.enter_context(pool.connect()) for _ in range(2))
        assert first.hold_on_gpu(store, a) is None
        held.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, breaks_off))
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(_BrokenOffError):
            second.hold_on_gpu(store, a)
        memory = os.memfd_create("gpu")
        held.callback(os.close, memory)
        first.fill(a, [memory])
        with pytest.raises(PoolError):
            second.hold_on_gpu(store, b)
        wait_for("the release", lambda: [each.uses for each in pool.listed()] == [1])


def test_an_image_with_a_descriptor_that_the_program_has_no_room_for_is_not_held(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ExitStack() as held:
        pool.make("a", MIB)
        store = held.enter_context(ImageStore(pool.store))
        image = held.enter_context(store.open("a"))
        mine = held.enter_context(pool.connect())
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
        try:
            with pytest.raises(PoolError, match="too many open files"):
                mine.hold(store, image)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        wait_for("the release", lambda: [each.uses for each in pool.listed()] == [0])


def test_a_store_at_a_path_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, pool.connect() as mine:
        pool.store = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
        pool.make("a", MIB)
        with ImageStore(pool.store) as store, store.open("a") as image:
            with pytest.raises(PoolError, match="UTF-8"):
                mine.hold(store, image)
            assert mine.listing().images == ()


def test_a_store_that_cannot_be_looked_at_costs_a_connection_nothing_else(tmp_path: Path) -> None:
    with running(tmp_path, "--host-memory", "16M") as pool, ImageStore(pool.store) as store, pool.connect() as program:
        pool.make("a", 100)
        with store.open("a") as image, program.hold(store, image):
            # Any error but those that say that there is none, such as ESTALE of a network file system.
            unseen = HoldImage(Tier.HOST, f"/{'x' * 300}", "a", "0" * 64, PATIENCE)
            with pytest.raises(PoolError, match="File name too long"):
                program._ask(unseen, ImageHeld)
            assert [each.uses for each in pool.listed()] == [1]


def test_a_damaged_image_is_refused_to_all_that_wait_and_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ExitStack() as held:
        manifest = pool.make("a", 6 * MIB)
        digest = next(iter(manifest.pieces()))
        piece = next(path for path in (pool.store / "pieces").rglob("*") if path.is_file() and digest in str(path))
        piece.chmod(0o600)
        piece.write_bytes(b"x" * piece.stat().st_size)
        store = held.enter_context(ImageStore(pool.store))
        image = held.enter_context(store.open("a"))
        with ThreadPoolExecutor(4) as threads:
            connections = [held.enter_context(pool.connect()) for _ in range(4)]
            tries = [threads.submit(each.hold, store, image) for each in connections]
            assert all("damaged" in str(each.exception(PATIENCE)) for each in tries)
        assert pool.listed() == []


def test_an_image_that_was_replaced_meanwhile_is_not_taken_for_the_other_one(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, ImageStore(pool.store) as store, pool.connect() as mine:
        pool.make("a", MIB)
        with store.open("a") as image:
            pool.make("a", regions={"r0": b"another"})
            with pytest.raises(PoolError, match="in its place"):
                mine.hold(store, image)


def test_a_file_in_the_place_of_the_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("kept")
    command = [sys.executable, "-m", "mpsguard.cli.guard", "pool", "--socket", str(path), *HOST_MEMORY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert path.read_text() == "kept"


@pytest.mark.parametrize(
    ("sizes", "code", "text"),
    [
        (("--host-memory", "1M", "--pinned-memory", "1M"), 1, "2M is the least"),
        (("--host-memory", "257T"), 2, "256T is the most"),
        (("--host-memory", "999999999T"), 2, "256T is the most"),
    ],
)
def test_sizes_that_no_tier_has_are_refused(tmp_path: Path, sizes: tuple[str, ...], code: int, text: str) -> None:
    command = [sys.executable, "-m", "mpsguard.cli.guard", "pool", "--socket", str(tmp_path / "run" / "sock"), *sizes]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code
    assert text in done.stderr.splitlines()[-1]


def test_a_socket_has_one_pool_and_the_next_one_takes_it_over(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool:
        command = [
            sys.executable,
            "-m",
            "mpsguard.cli.guard",
            "pool",
            "--socket",
            str(pool.path),
            "--host-memory",
            "1M",
        ]
        second = subprocess.run(
            command, env=pool.environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (second.returncode, len(second.stderr.splitlines())) == (1, 1), second.stderr
        assert pool.process is not None
        pool.process.send_signal(signal.SIGKILL)
        pool.process.communicate()
        pool.start(*HOST_MEMORY)
        assert pool.listed() == []


@pytest.mark.root
def test_another_user_gets_nothing_even_with_a_way_to_the_socket(tmp_path: Path) -> None:
    program = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); s.settimeout(20)\n"
        "os.chdir(sys.argv[1]); os.setgid(65534); os.setuid(65534)\n"
        "s.connect('pool.sock')\n"
        "try:\n"
        '    s.send(b\'{"type":"list"}\'); print(s.recv(1000))\n'
        "except OSError as error: print(type(error).__name__)\n"
    )
    with running(tmp_path, *HOST_MEMORY) as pool:
        pool.path.parent.chmod(0o755)
        pool.path.chmod(0o666)
        command = [sys.executable, "-c", program, str(pool.path.parent)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert done.stdout.strip() in {"b''", "BrokenPipeError", "ConnectionResetError"}, done.stderr
        assert pool.listed() == []


def test_invalid_packets_end_the_connection_alone(tmp_path: Path) -> None:
    invalid = [(b"\0", 0), (b"nothing", 1), (b'{"type":"hold","tier":"host"}', 0), (b"x" * 70000, 0), (b"{}", 200)]
    with running(tmp_path, *HOST_MEMORY) as pool:
        for data, count in invalid:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as raw:
                raw.settimeout(PATIENCE)
                raw.connect(str(pool.path))
                try:
                    socket.send_fds(raw, [data], [0] * count)
                except PermissionError:
                    # From Linux 6.16 on, descriptors are refused to their sender.
                    assert count
                    continue
                assert raw.recv(10) == b""
        assert pool.listed() == []


def test_the_list_of_images_says_where_each_is(tmp_path: Path) -> None:
    with running(tmp_path, *HOST_MEMORY) as pool, pool.connect() as mine, ImageStore(pool.store) as store:
        pool.make("a", MIB)
        pool.make("b", MIB)
        with store.open("a") as image:
            mine.hold(store, image)
            assert mine.hold_on_gpu(store, image) is None
            memfd = os.memfd_create("gpu")
            mine.fill(image, [memfd])
            os.close(memfd)
        variables = {"MPSGUARD_POOL": str(pool.path), "COLUMNS": "200"}
        command = ["image", "list", "--store", str(pool.store)]
        document = json.loads(CliRunner().invoke(ctl.main, ["--json", *command], env=variables).stdout)
        assert {each["name"]: each["tiers"] for each in document["images"]} == {"a": ["gpu", "host"], "b": []}
        table = CliRunner().invoke(ctl.main, command, env=variables).stdout
        assert re.search(r"^a .*gpu host disk", table, re.MULTILINE)
        assert not re.search(r"^b .*host", table, re.MULTILINE)


def test_without_a_pool_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(PoolError, match=r"no pool at .*: No such file"):
        PoolConnection(tmp_path / "pool.sock")
