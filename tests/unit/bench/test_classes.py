"""What the suite of service classes makes of its programs' words; the programs themselves without a GPU."""

import json
import subprocess
import sys

import pytest

from tests.bench.classes.resize import whole
from tests.bench.classes.torch_service import PROGRAM, Round, steps_a_second
from tests.bench.failover.streams import Answer


def test_a_rate_is_that_of_the_steps_within_the_time() -> None:
    steps = [0.0, 0.9, 1.0, 1.5, 2.0, 2.5, 9.0]
    assert steps_a_second(steps, 1.0, 2.6) == 2.0
    assert steps_a_second(steps, 2.1, 2.6) == 0.0
    assert steps_a_second([], 0.0, 1.0) == 0.0


def test_answers_in_time_count_for_the_seconds_in_which_requests_came() -> None:
    answered = Round((1.0, 2.0, 3.0, 40.0), begin=0.0, end=4.0, seconds=2.0)
    assert answered.within(3.0) == 1.5
    assert (answered.p50, answered.p99) == (2.0, 40.0)


@pytest.mark.slow(seconds=30, reason="loads PyTorch")
def test_the_programs_answer_rounds_and_end_with_their_input() -> None:
    asked = [
        {"kind": "gpt2", "seconds": 0.2, "rate": 50},
        {"kind": "bert-2", "seconds": 0.2, "rate": 0},
        {"kind": "resnet50-2", "seconds": 0.2, "rate": 200_000, "seed": 7},
        {"kind": "train", "seconds": 0.2},
    ]
    kinds = [str(each["kind"]) for each in asked]
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *kinds, "--device", "cpu"],
        input="".join(json.dumps(each) + "\n" for each in asked),
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    rounds = [each for each in told if each["event"] == "round"]
    assert [each["kind"] for each in rounds] == kinds
    assert 0 < len(rounds[0]["latencies_us"]) <= 11
    # Overloaded: what was still due counts as late, so that no request is lost from the tail.
    assert len(rounds[2]["latencies_us"]) > 30_000
    assert max(rounds[2]["latencies_us"]) > 100_000
    assert rounds[3]["steps"] == sorted(rounds[3]["steps"])
    assert told[-1]["event"] == "finished"


def answer(*indexes: int, end: bytes = b'{"done": true}\n\r\n0\r\n\r\n') -> Answer:
    body = b"".join(b'10\r\n{"index": %d, "token": 7}\n\r\n' % index for index in indexes)
    return Answer(0, 0, b"HTTP/1.1 200 OK\r\n\r\n" + body + b"10\r\n" + end)


def test_an_answer_is_whole_if_each_token_came_once_and_it_has_its_end() -> None:
    assert whole(answer(0, 1, 2))
    assert not whole(answer(0, 2))
    assert not whole(answer(0, 1, 1))
    assert not whole(answer())
    assert not whole(answer(0, 1, end=b""))
    assert not whole(Answer(0, 0, answer(0, 1).body, error="reset"))
