"""What a report says, in whatever form."""

import pytest
from msgspec.structs import replace

from mpsguard.guard.evidence import Lost, Source
from mpsguard.guard.incident import Confidence, FaultClass, Suspect
from mpsguard.guard.report import page, text
from mpsguard.guard.report.report_model import TrackRole, build_report
from mpsguard.linux.identity import ProcessKey
from mpsguard.linux.times import clock
from tests.unit.guard.report.examples import CASE, CULPRIT, EVIDENCE, HOSTILE, OTHER, VICTIM, case, seen, suspect


def test_the_verdict_comes_first_and_names_culprit_fault_gpu_and_certainty() -> None:
    first = " ".join(text.render(build_report(CASE)).split("\n\n")[0].split())
    assert first.startswith(
        "Process 4242 (python train.py --batch 512 --model resnet) caused a memory fault (Xid 31) on GPU 0000:18:00; "
        "this is proven; it hit 2 clients."
    )


@pytest.mark.parametrize(
    ("changes", "words", "never"),
    [
        ({"confidence": Confidence.LIKELY}, ("most likely caused",), ("proven",)),
        (
            {"confidence": Confidence.UNKNOWN, "culprit": None, "candidates": (suspect(CULPRIT), suspect(OTHER))},
            ("not known, but is among", "4242", "4244"),
            ("caused", "proven"),
        ),
        ({"confidence": Confidence.UNKNOWN, "culprit": None}, ("culprit is not known",), ("caused", "4242")),
        (
            {"fault_class": FaultClass.DEVICE, "culprit": None, "xids": (79,)},
            ("device itself", "Xid 79", "no process is to blame"),
            ("caused", "not known"),
        ),
        ({"culprit": Suspect(999, None, False), "victims": ()}, ("no client of ours", "no client was hit"), ("4242",)),
        (
            {"fault_class": FaultClass.PROCESS, "xids": (), "victims": ()},
            ("nothing but its own end", "no client was hit"),
            ("fault ",),
        ),
    ],
)
def test_a_verdict_claims_no_more_than_is_known(
    changes: dict[str, object], words: tuple[str, ...], never: tuple[str, ...]
) -> None:
    verdict = build_report(case(**changes)).verdict
    assert all(word in verdict for word in words), verdict
    assert not any(word in verdict for word in never), verdict


def test_moments_are_numbered_in_the_order_of_what_happened_and_counted_from_its_beginning() -> None:
    shuffled = build_report(case(evidence=tuple(reversed(EVIDENCE)))).entries
    assert [entry.number for entry in shuffled] == list(range(1, len(EVIDENCE) + 2))
    assert [entry.ms for entry in shuffled] == sorted(entry.ms for entry in shuffled)
    assert {round(entry.ms, 3) for entry in shuffled} >= {-90_000.0, 0.0, 2.1, 14.4}
    decision = next(entry for entry in shuffled if entry.role is TrackRole.GUARD)
    assert decision.ms == pytest.approx(6.0, abs=0.01)


def test_the_pid_a_kernel_line_blames_is_not_given_a_role_by_it() -> None:
    blamed = next(entry for entry in build_report(CASE).entries if "names pid 4243" in entry.text)
    assert (blamed.role, blamed.track) == (TrackRole.SENSOR, "kernel log")


def test_roles_are_the_verdicts_and_the_culprits_track_is_first() -> None:
    tracks = build_report(CASE).tracks
    assert tracks[0] == ("4242 python train.py --batch 512 --model resnet", TrackRole.CULPRIT)
    assert sum(role is TrackRole.VICTIM for _, role in tracks) == 2


def test_two_processes_of_one_pid_have_a_track_each() -> None:
    again = ProcessKey(CULPRIT.pid, CULPRIT.start_ticks + 500)
    names = [
        name for name, _ in build_report(case(evidence=(*EVIDENCE, seen(Source.PROCESSES, 18, Lost(1), again)))).tracks
    ]
    assert len([name for name in names if "4242" in name]) == 2


def test_nothing_of_a_strangers_reaches_the_terminal_as_a_command() -> None:
    told = text.render(build_report(CASE))
    assert "\x1b" not in told
    assert "\u202e" not in told
    assert "<script>" in told, HOSTILE


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_report_on_a_terminal_is_folded_between_words(width: int) -> None:
    lines = text.render(build_report(CASE), width).splitlines()
    words = set(" ".join(lines).split())
    unfolded = set(text.render(build_report(CASE), 10_000).split())
    assert words == unfolded
    # A word that is longer than the line stays whole.
    assert all(
        len(line) <= width or len(line.split()) <= 1 or len(line.lstrip().split()[-1]) > width // 2 for line in lines
    )


def test_advice_on_an_xid_comes_before_the_advice_on_its_class() -> None:
    steps = build_report(CASE, {31: "first this", 13: "not this"}).steps
    assert steps[0] == "Xid 31: first this"
    assert len(steps) == 2
    assert "compute-sanitizer" in text.render(build_report(CASE))


def test_a_long_name_in_a_terminals_timeline_is_shortened_in_the_middle() -> None:
    timeline = text.render(build_report(CASE), 10_000).split("SEEN BY")[1]
    named = [line for line in timeline.splitlines() if " 4242 " in line]
    assert named
    for line in named:
        assert "4242 python train.p… 512 --model resnet: " in line


def test_every_class_has_words_and_advice() -> None:
    for fault_class in FaultClass:
        for confidence in Confidence:
            report = build_report(case(fault_class=fault_class, confidence=confidence))
            assert report.verdict.endswith(".")
            assert report.steps


def test_the_clock_is_utc_to_the_millisecond() -> None:
    assert clock(0.9996) == "1970-01-01 00:00:01.000 UTC"
    assert dict(build_report(CASE).facts)["began"] == "2026-11-20 15:30:12.250 UTC"


def test_victims_and_strangers_are_told_apart() -> None:
    assert dict(build_report(case(victims=(suspect(VICTIM), Suspect(7, None, False)))).facts)["victims"].endswith(
        "process 7 (no client of ours)"
    )


@pytest.mark.parametrize(("in_flight", "shown"), [(True, "yes"), (False, "no"), (None, "not known")])
def test_whether_work_was_in_flight_is_among_the_facts(in_flight: bool | None, shown: str) -> None:
    ended = build_report(case(fault_class=FaultClass.PROCESS, work_in_flight=in_flight))
    assert dict(ended.facts)["work in flight"] == shown
    assert f"<dt>work in flight</dt><dd>{shown}</dd>" in page.render(ended)
    assert any(line.split() == ["work", "in", "flight", *shown.split()] for line in text.render(ended).splitlines())


def test_a_lane_is_named_if_it_is_the_only_one() -> None:
    assert dict(build_report(case()).facts)["lane"] == "default"
    assert dict(build_report(case(lane=None)).facts)["lane"] == "more than one"
    assert dict(build_report(case(lane=None, victims=())).facts)["lane"] == "not known"


def test_where_no_process_ended_the_question_does_not_arise() -> None:
    assert "work in flight" not in dict(build_report(case()).facts)


def test_service_classes_are_named_where_there_are_any() -> None:
    assert "service classes" not in dict(build_report(CASE).facts)
    classes = {CULPRIT: "batch", VICTIM: "critical", OTHER: "critical"}
    clients = tuple(replace(each, service_class=classes[each.process]) for each in CASE.clients)
    facts = dict(build_report(replace(CASE, clients=clients)).facts)
    assert facts["service classes"] == "culprit: batch; victims: critical 2"
