"""When the server of a faulted lane is told to end."""

from mpsguard.guard.incidents.lane_release import LOST_FOR, MAY_GO_FOR, Remaining, due

ELSEWHERE = Remaining(1, elsewhere=True, may_go_over=False)
LOST = Remaining(2, elsewhere=False, may_go_over=False)
IDLE = Remaining(3, elsewhere=False, may_go_over=True)


def test_a_server_without_clients_of_another_lane_is_left_alone() -> None:
    assert due([LOST, IDLE], 100.0) is None
    assert due([], 100.0) is None


def test_at_once_when_all_work_elsewhere() -> None:
    assert due([ELSEWHERE, ELSEWHERE], 100.0) == 100.0


def test_clients_that_have_lost_their_work_get_time_for_a_core_dump() -> None:
    assert due([ELSEWHERE, LOST], 100.0) == 100.0 + LOST_FOR


def test_clients_that_may_still_go_over_get_the_longest_time() -> None:
    assert due([ELSEWHERE, IDLE, LOST], 100.0) == 100.0 + MAY_GO_FOR
