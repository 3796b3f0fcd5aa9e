"""What the evidence says of a lane: its state, and whether a control daemon is ours."""

from itertools import permutations
from pathlib import Path

import msgspec
import pytest

from mpsguard.guard.lanes import control_process, lane_state
from mpsguard.guard.lanes.control_process import ControlEvidence
from mpsguard.guard.model import LaneState, Server
from mpsguard.linux.identity import ProcessKey

PIPE = Path("/run/mpsguard/lanes/default-0/pipe")
DAEMON = ProcessKey(467, 99)
OURS = ControlEvidence(lock_holder=467, listener=467, pid_file=467, environment=str(PIPE), process=DAEMON)


def servers(*words: str) -> list[Server]:
    return [Server(ProcessKey(100 + index, 1), word) for index, word in enumerate(words)]


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ((), LaneState.ACTIVE),
        (("ACTIVE",), LaneState.ACTIVE),
        (("ACTIVE", "ACTIVE"), LaneState.ACTIVE),
        (("INITIALIZING",), LaneState.INITIALIZING),
        (("FAULT",), LaneState.FAULT),
        (("ACTIVE", "FAULT"), LaneState.FAULT),
        (("INITIALIZING", "FAULT", "ACTIVE"), LaneState.FAULT),
        (("a word of a later driver",), LaneState.UNKNOWN),
        (("",), LaneState.UNKNOWN),
        (("ACTIVE", "INITIALIZING", "?"), LaneState.UNKNOWN),
    ],
)
def test_the_gravest_server_decides_in_any_order(words: tuple[str, ...], state: LaneState) -> None:
    for order in permutations(words):
        assert lane_state.decide(servers(*order))[0] is state


def test_clients_are_held_back_only_where_waiting_helps() -> None:
    admitted = {state for state in LaneState if lane_state.admits(state)}
    assert admitted == {LaneState.ACTIVE, LaneState.UNKNOWN, LaneState.FAILING}


def test_a_daemon_with_all_the_proof_is_ours() -> None:
    assert control_process.verdict(OURS, PIPE) == DAEMON


def test_driver_535_writes_no_pid_file() -> None:
    assert control_process.verdict(msgspec.structs.replace(OURS, pid_file=None), PIPE) == DAEMON


@pytest.mark.parametrize(
    "changes",
    [
        {"lock_holder": None},
        {"process": None},
        {"listener": None},
        {"listener": 468},
        {"pid_file": 468},
        {"environment": None},
        {"environment": "/run/nvidia-mps"},
        {"lock_holder": 468},
    ],
)
def test_one_piece_of_evidence_against_it_is_enough(changes: dict[str, object]) -> None:
    assert isinstance(control_process.verdict(msgspec.structs.replace(OURS, **changes), PIPE), str)


def test_the_daemon_gets_the_lane_and_nothing_of_the_guards_own_service() -> None:
    environment = control_process.environment_for(
        PIPE,
        Path("/var/log/mpsguard/default-0"),
        ("0", "1"),
        {
            "PATH": "/bin",
            "NOTIFY_SOCKET": "/run/systemd/notify",
            "LISTEN_FDS": "2",
            "WATCHDOG_USEC": "1",
            "CUDA_MPS_PIPE_DIRECTORY": "/elsewhere",
            "CUDA_MPS_CLIENT_PRIORITY": "1",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "37",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3G",
            "CUDA_MPS_PROTOCOL_VERSION": "3",
            "CUDA_DEVICE_MAX_CONNECTIONS": "2",
            "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        },
    )
    assert environment == {
        "CUDA_DEVICE_MAX_CONNECTIONS": "2",
        "CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING": "1",
        "PATH": "/bin",
        "CUDA_MPS_PIPE_DIRECTORY": str(PIPE),
        "CUDA_MPS_LOG_DIRECTORY": "/var/log/mpsguard/default-0",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
