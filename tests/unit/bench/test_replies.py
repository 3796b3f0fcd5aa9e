"""What may differ between two runs is masked; everything else counts."""

from tests.bench.core.replies import Difference, differing, mask

PS = "501       2         479            GPU-8335189a-105a-3028    4026531836     /tmp/w/faults  "


def test_ps_lines_of_pids_with_different_widths_become_the_same() -> None:
    other = "12345     2         9876543        GPU-8335189a-105a-3028    4026531836     /tmp/w/faults  "
    masked = mask(PS, {501: "client 1", 479: "server"})
    assert masked == mask(other, {12345: "client 1", 9876543: "server"})
    assert masked.startswith("<client 1> 2         <server> GPU-8335189a-105a-3028")


def test_a_pid_is_masked_only_as_a_whole_number() -> None:
    assert mask("4790 479x 1.479 479.1 479", {479: "server"}) == "4790 479x 1.479 <server>.1 <server>"


def test_a_time_is_masked() -> None:
    assert mask("[2026-11-20 14:01:18.613 Control]", {}) == "[<time> Control]"


def test_same_replies_do_not_differ() -> None:
    assert differing("ps", ["a", "b"], ["a", "b"]) is None


def test_order_matters() -> None:
    assert differing("ps", ["a", "b"], ["b", "a"]) is not None


def test_a_changed_line_counts_once_and_a_missing_one_too() -> None:
    changed = differing("x", ["100.0", "exit status 0"], ["50.0", "exit status 0"])
    missing = differing("y", ["a", "b", "c"], ["a"])
    assert changed == Difference("x", ("100.0",), ("50.0",), 1)
    assert missing == Difference("y", ("b", "c"), (), 2)


def test_a_difference_explains_itself() -> None:
    assert str(differing("ps", ["a"], ["b"])) == "'ps': stock ['a'], ours ['b']"
