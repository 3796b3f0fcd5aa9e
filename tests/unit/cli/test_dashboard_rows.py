"""Rows of the screen: what a snapshot becomes, and how columns fit."""

from msgspec.structs import replace

from mpsguard.cli.dashboard import rows
from mpsguard.cli.dashboard.snapshot import Snapshot
from mpsguard.guard.control_api.health import Health
from mpsguard.guard.control_api.messages.clients import ClientList, ClientMemory, Watch
from mpsguard.guard.control_api.messages.guard import DomainStatus, Status
from mpsguard.guard.control_api.messages.incidents import IncidentList
from mpsguard.guard.incident import Confidence, FaultClass, Suspect
from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.guard.model import Client, LaneReport, LaneState
from mpsguard.linux.identity import ProcessKey

PADDING = 2
CULPRIT = Suspect(7, ProcessKey(7, 70), True)
VICTIM = Suspect(8, ProcessKey(8, 80), True)
CLIENT = Client(
    ProcessKey(7, 70), 1000, 1000, "/opt/bin/python -m train /data", "/job", None, None, "default", "default-0", 0.0
)
LANE = LaneReport("default-0", "default", LaneState.ACTIVE, "well", 0.0, "/pipe", "/log")
DOMAIN = DomainStatus("default", "/run/mps", ("all",), True, LANE, None, 1, 2, True, True)
STATUS = Status("1.0", 0.0, Health.DEGRADED, ("no UVM sensor", "no NVML"), (), (DOMAIN,), ())
INCIDENT = IncidentSummary(
    "i1", 0.0, 1.0, FaultClass.MMU, None, "default-0", CULPRIT, "/opt/bin/python -m train", (), (CULPRIT, VICTIM),
    Confidence.PROVEN, "", (31,),
)  # fmt: skip


def cells(row: rows.Row, columns: tuple[rows.Column, ...]) -> dict[str, str]:
    return dict(zip([column.heading for column in columns], row.cells, strict=True))


def test_all_columns_of_a_screen_fit_it_and_the_last_takes_what_is_left() -> None:
    for columns in (rows.LANES, rows.CLIENTS, rows.INCIDENTS):
        for width in (80, 100, 130, 240):
            found = rows.widths(columns, width, PADDING)
            assert sum(found) + PADDING * len(found) == width
            assert min(found) >= 4
        # Of a screen that is too narrow for all, no column vanishes that it should have.
        assert min(rows.widths(columns, 20, PADDING)) > 0


def test_a_wider_screen_has_more_columns() -> None:
    assert set(rows.shown(rows.CLIENTS, 80)) < set(rows.shown(rows.CLIENTS, 200))
    assert len(rows.shown(rows.CLIENTS, 200)) == len(rows.CLIENTS)


def test_the_first_line_has_health_and_problems_or_why_there_is_no_guard() -> None:
    first = rows.heading(Snapshot(STATUS))
    assert "degraded" in first
    assert first.endswith("; no UVM sensor; no NVML")
    assert "refused" in rows.heading(Snapshot(failure="connection refused"))


def test_a_standby_lane_has_a_row_of_its_own() -> None:
    spare = replace(LANE, name="default-1", state=LaneState.FAULT)
    status = replace(STATUS, domains=(replace(DOMAIN, spare=spare, spare_clients=4),))
    found = [cells(row, rows.LANES) for row in rows.lanes(Snapshot(status))]
    assert [(row["LANE"], row["STATE"], row["CLIENTS"], row["WAITING"]) for row in found] == [
        ("default-0", "ACTIVE", "1", "2"),
        ("default-1", "FAULT", "4", "-"),
    ]


def test_a_client_has_what_its_class_gives_it_and_no_directories_in_its_command() -> None:
    client = replace(CLIENT, service_class="batch", sm_share=40.0, memory_limits=("0=2G",), container="c" * 64)
    (row,) = rows.clients(Snapshot(STATUS, ClientList((client,), (Watch(7, True, ""),))))
    found = cells(row, rows.CLIENTS)
    assert (found["CLASS"], found["SHARE"], found["LIMIT"]) == ("batch", "40 %", "0=2G")
    assert (found["WATCHED"], found["CONTAINER"]) == ("yes", "c" * 12)
    assert found["COMMAND"] == "python -m train /data"


def test_the_memory_is_on_every_screen_and_what_no_sensor_could_watch_is_no_warning() -> None:
    assert "MEMORY" in {rows.CLIENTS[number].heading for number in rows.shown(rows.CLIENTS, 80)}
    answer = ClientList((CLIENT,), (Watch(7, False, "", sensor=False),), memory=(ClientMemory(3 << 30),))
    (row,) = rows.clients(Snapshot(STATUS, answer))
    found = cells(row, rows.CLIENTS)
    assert (found["MEMORY"], found["WATCHED"]) == ("3072M", "-")


def test_the_culprit_is_not_counted_among_its_victims() -> None:
    (row,) = rows.incidents(Snapshot(STATUS, incidents=IncidentList((INCIDENT,))))
    found = cells(row, rows.INCIDENTS)
    assert (found["FAULT"], found["XIDS"], found["VICTIMS"]) == ("mmu", "31", "1")
    assert found["CULPRIT"] == "7 python -m train"


def test_a_culprit_that_is_not_known_is_not_named() -> None:
    unknown = replace(INCIDENT, culprit=None, culprit_command=None, candidates=(CULPRIT, VICTIM))
    for incident, words in ((unknown, "one of 2"), (replace(unknown, candidates=()), "not known")):
        (row,) = rows.incidents(Snapshot(STATUS, incidents=IncidentList((incident,))))
        assert cells(row, rows.INCIDENTS)["CULPRIT"] == words
