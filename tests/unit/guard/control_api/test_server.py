"""The control API over real sockets: every input is answered, none is fatal."""

import asyncio
import os
import stat
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from mpsguard.guard.control_api import protocol
from mpsguard.guard.control_api.event_stream import EventStream
from mpsguard.guard.control_api.protocol import Reply, RequestError
from mpsguard.guard.control_api.server import Api, Handler
from tests.harness.waiting import until


class Arguments(msgspec.Struct):
    wait: float = 0.0
    fail: str = ""


class Done(msgspec.Struct):
    done: bool


async def work(_: None, arguments: Arguments) -> Done:
    await asyncio.sleep(arguments.wait)
    if arguments.fail == "request":
        raise RequestError("failed", "as asked")
    if arguments.fail == "bug":
        raise ZeroDivisionError
    return Done(True)


HANDLERS = {
    "work": Handler("work", Arguments, work),
    "begin": Handler("begin", Arguments, work, goes_on="it goes on"),
}


@pytest.fixture
def run_directory() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="mg-") as directory:
        yield directory


def with_api(run_directory: str, scenario: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        api = Api(None, HANDLERS, run_directory)
        api.open(None)
        serving = asyncio.create_task(api.run())
        context = zmq.asyncio.Context()
        sock = context.socket(zmq.DEALER)
        sock.connect(f"ipc://{protocol.api_socket(run_directory)}")
        try:
            async with asyncio.timeout(20):
                await scenario(sock)
        finally:
            context.destroy(linger=0)
            serving.cancel()
            await api.close()

    asyncio.run(main())


async def ask(sock: Any, payload: bytes) -> Reply:
    await sock.send(payload)
    return msgspec.json.decode(await sock.recv(), type=Reply)


def request(**changes: Any) -> bytes:
    return msgspec.json.encode({"v": 1, "command": "work", "id": "7", "args": {}, **changes})


def test_a_request_is_carried_out_and_answered_under_its_id(run_directory: str) -> None:
    async def scenario(sock: Any) -> None:
        reply = await ask(sock, request())
        assert (reply.v, reply.id, reply.result, reply.error) == (1, "7", {"done": True}, None)

    with_api(run_directory, scenario)


def test_a_command_that_is_not_broken_off_says_so_at_the_deadline(run_directory: str) -> None:
    async def scenario(sock: Any) -> None:
        reply = await ask(sock, request(command="begin", args={"wait": 60}, deadline=0.05))
        assert reply.error is not None
        assert (reply.error.code, reply.error.message) == (
            "deadline",
            "not done within the request's deadline; it goes on",
        )

    with_api(run_directory, scenario)


@pytest.mark.parametrize(
    ("payload", "code"),
    [
        (b"", "malformed"),
        (b"{", "malformed"),
        (b"[]", "malformed"),
        (b"\xff", "malformed"),
        (b"[" * 100_000, "malformed"),
        (msgspec.json.encode({"command": "work"}), "malformed"),
        (request(command="QQ").replace(b"QQ", b"\xff\xfe"), "malformed"),
        (request(args={"fail": "QQ"}).replace(b"QQ", b"\xff\xfe"), "arguments"),
        (request(v=2), "version"),
        (request(command="no such thing"), "unknown_command"),
        (request(args={"wait": "long"}), "arguments"),
        (request(args=[]), "arguments"),
        (request(args={"wait": 60}, deadline=0.05), "deadline"),
        (request(args={"wait": 60}, deadline=-5), "deadline"),
        (request(args={"fail": "request"}), "failed"),
        (request(args={"fail": "bug"}), "failed"),
    ],
)
def test_what_cannot_be_done_is_answered_with_its_reason(run_directory: str, payload: bytes, code: str) -> None:
    async def scenario(sock: Any) -> None:
        reply = await ask(sock, payload)
        assert reply.error is not None
        assert reply.error.code == code
        assert (await ask(sock, request())).result == {"done": True}

    with_api(run_directory, scenario)


def test_slow_requests_delay_no_other_and_too_many_are_refused(run_directory: str) -> None:
    async def scenario(sock: Any) -> None:
        for _ in range(80):
            await sock.send(request(id="slow", args={"wait": 60}, deadline=2.0))
        errors: list[protocol.Error | None] = []
        while len(errors) < 80:
            errors.append(msgspec.json.decode(await sock.recv(), type=Reply).error)
        codes = [error.code for error in errors if error is not None]
        assert codes.count("busy") > 0
        assert set(codes) == {"busy", "deadline"}
        assert (await ask(sock, request())).result == {"done": True}

    with_api(run_directory, scenario)


@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=5))
def test_no_frames_whatever_end_the_guard(run_directory: str, frames: list[bytes]) -> None:
    async def scenario(sock: Any) -> None:
        await sock.send_multipart(frames)
        await sock.recv_multipart()
        assert (await ask(sock, request())).result == {"done": True}

    with_api(run_directory, scenario)


def test_only_our_own_user_can_open_the_sockets(run_directory: str) -> None:
    async def scenario(_: Any) -> None:
        for path in (protocol.api_socket(run_directory), protocol.events_socket(run_directory)):
            assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0

    with_api(run_directory, scenario)
    assert os.listdir(run_directory) == []


def test_a_group_is_let_in_and_an_unknown_one_is_an_error(run_directory: str) -> None:
    async def main() -> None:
        refused = Api(None, HANDLERS, run_directory)
        with pytest.raises(LookupError):
            refused.open("no-such-group-here")
        await refused.close()
        api = Api(None, HANDLERS, run_directory)
        if os.geteuid() != 0:
            pytest.skip("only root can give a socket to another group")
        api.open("daemon")
        mode = os.stat(protocol.api_socket(run_directory)).st_mode
        assert stat.S_IMODE(mode) == 0o660
        await api.close()

    asyncio.run(main())


def test_events_are_numbered_kept_and_bounded() -> None:
    stream = EventStream()
    heard: list[int] = []
    stream.listen(lambda event: heard.append(event.seq))
    for number in range(1500):
        stream.publish("tick", "default", number=number)
    recent = stream.recent()
    assert [event.seq for event in recent] == list(range(501, 1501))
    assert heard == list(range(1, 1501))


def test_what_ends_a_thread_is_an_event_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    # Given back after the test.
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    stream = EventStream()

    def defective() -> None:
        raise ZeroDivisionError

    async def main() -> None:
        stream.catch_defects(asyncio.get_running_loop())
        thread = threading.Thread(target=defective, name="worker")
        thread.start()
        await until(stream.recent)
        thread.join()

    asyncio.run(main())
    (event,) = stream.recent()
    assert event.kind == "internal_error"
    assert "worker" in event.data["detail"]


def test_events_of_clients_do_not_push_out_those_of_lanes() -> None:
    stream = EventStream()
    stream.publish("lane_down", "default")
    for _ in range(1500):
        stream.publish("client_connected", "default", uid=65534)
        stream.publish("connection_refused", "default", uid=65534)
    stream.publish("incident", "")
    recent = stream.recent()
    assert recent[0].kind == "lane_down"
    assert recent[-1].kind == "incident"
    assert len(recent) == 1002
    assert [event.seq for event in recent] == sorted(event.seq for event in recent)


def test_what_happens_behind_the_close_is_no_defect(run_directory: str) -> None:
    """The guard's own end goes on, and publishes."""

    async def main() -> None:
        api, events = Api(None, HANDLERS, run_directory), EventStream()
        api.open(None)
        events.listen(api.publish)
        await api.close()
        events.publish("guard_ready", "")

    asyncio.run(main())
