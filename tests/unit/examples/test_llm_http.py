"""The token server's HTTP: what it takes, and that its answers are a function of the request's state."""

import json

import h11
import pytest

from examples.llm_server import http
from examples.llm_server.state import MOST_DEATHS, Request


def post(body: object, *, path: str = "/generate") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def parse(data: bytes) -> http.Received | http.Refused | None:
    return http.parse(data, vocabulary=512, length=100)


def read(answer: bytes) -> tuple[int, list[dict[str, object]], bool]:
    """Status, the body's lines, and whether it is whole; by a client that knows HTTP."""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/generate", headers=[("Host", "x"), ("Content-Length", "0")]))
    client.send(h11.EndOfMessage())
    client.receive_data(answer)
    status, body = 0, b""
    while (event := client.next_event()) is not h11.NEED_DATA and event is not h11.PAUSED:
        if isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += bytes(event.data)
        elif isinstance(event, h11.EndOfMessage):
            return status, [json.loads(line) for line in body.splitlines()], True
    return status, [json.loads(line) for line in body.splitlines()], False


def test_a_request_is_there_when_it_is_whole_and_not_before() -> None:
    data = post({"prompt": [1, 2, 3], "max_tokens": 5, "seed": 8})
    for end in range(len(data)):
        assert parse(data[:end]) is None
    found = parse(data + b"GET / ")
    assert found == http.Received(http.Wanted((1, 2, 3), 5, 8), len(data))


def test_a_text_is_its_bytes() -> None:
    found = parse(post({"prompt": "aé"}))
    assert isinstance(found, http.Received)
    assert found.wanted.tokens == (0x61, 0xC3, 0xA9)


@pytest.mark.parametrize(
    ("data", "status", "said"),
    [
        (b"GET /generate HTTP/1.1\r\nHost: x\r\n\r\n", 404, "POST /generate"),
        (post({"prompt": "x"}, path="/other"), 404, "POST /generate"),
        (b"what is this\r\n\r\n", 400, ""),
        (post(b"{"), 400, ""),
        (post({"prompt": []}), 400, "at least one"),
        (post({"prompt": [512]}), 400, "below 512"),
        (post({"prompt": [-1]}), 400, ">= 0"),
        (post({"prompt": "x", "max_tokens": 100}), 400, "100 tokens"),
        (post({"prompt": "x", "max_tokens": 0}), 400, ">= 1"),
        (post({"prompt": "x", "temperature": 2}), 400, "temperature"),
        (post(b"x" * http.MOST_BYTES)[: http.MOST_BYTES], 413, "65536"),
    ],
)
def test_a_wrong_request_is_answered_with_one_line(data: bytes, status: int, said: str) -> None:
    found = parse(data)
    assert isinstance(found, http.Refused)
    got, lines, whole = read(found.answer)
    assert (got, whole, len(lines)) == (status, True, 1)
    assert said in str(lines[0]["error"])


def test_an_answer_grows_and_its_parts_are_the_whole() -> None:
    request = Request(3, 0, (1,), 4, 0)
    written = http.answer(request)
    for index, token in enumerate((10, 200, 30, 511)):
        assert read(written)[2] is False
        request = Request(3, 0, (1,), 4, 0, (*request.tokens, token))
        written += http.piece(index, token) + http.end(request)
        assert written == http.answer(request)
    status, lines, whole = read(written)
    assert (status, whole) == (200, True)
    assert [line.get("token") for line in lines] == [10, 200, 30, 511, None]
    assert lines[-1] == {"done": True}


def test_a_request_that_was_given_up_ends_with_an_error() -> None:
    status, lines, whole = read(http.answer(Request(3, 0, (1,), 4, 0, (10,), MOST_DEATHS)))
    assert (status, whole, len(lines)) == (200, True, 2)
    assert "given up" in str(lines[1]["error"])
