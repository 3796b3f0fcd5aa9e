"""The journal as the guard uses it."""

import asyncio
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from mpsguard.guard.incident import Confidence
from mpsguard.guard.journal.journal import Journal
from mpsguard.guard.journal.records import Bundle, JournalBusyError, JournalError, JournalLimits
from mpsguard.guard.journal.store import Store
from tests.unit.guard.journal.incidents import came, client, ended, fault, incident, process, wait, xid


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal.open(path)
    yield opened
    opened.close()


def test_an_incident_is_found_again_by_its_id_also_by_the_next_guard(path: Path, journal: Journal) -> None:
    recorded = incident(fault(time.monotonic(), 1), culprit=1)
    name = journal.record_incident(recorded, [client(1), client(2)])
    journal.record_decision(name, "decided", "wait", {"seconds": 3})
    journal.remember("kmsg", "4711")
    assert wait(journal.get(name)).incident == recorded
    journal.close()
    again = Journal.open(path)
    found = wait(again.get(name))
    assert found.incident == recorded
    assert found.clients == (client(1),), "only those that took part"
    assert [(d.kind, d.text, d.data) for d in found.decisions] == [("decided", "wait", {"seconds": 3})]
    assert found.versions["mpsguard"]
    assert again.recall("kmsg") == "4711"
    assert again.recall("other") is None
    again.close()


def test_ids_are_the_time_in_utc_and_a_number_and_are_never_given_twice(path: Path, journal: Journal) -> None:
    now = time.monotonic()
    first, second = (journal.record_incident(incident(fault(now, n), culprit=n)) for n in (1, 2))
    assert first.endswith("-1")
    assert second == first[:-1] + "2"
    shown = wait(journal.list())[0].began
    assert first.startswith(time.strftime("%Y%m%d-%H%M%S", time.gmtime(shown)))
    assert abs(shown - time.time()) < 3600
    journal.close()
    again = Journal.open(path)
    assert again.record_incident(incident(fault(now, 3), culprit=3)) == first[:-1] + "3"
    again.close()


def test_more_evidence_is_an_update_of_the_incident_named(journal: Journal) -> None:
    now = time.monotonic()
    access, line, end = fault(now, 1), xid(now + 0.002), ended(now + 0.01, 1)
    first = journal.record_incident(incident(line, culprit=None, confidence=Confidence.UNKNOWN), [client(1, "first")])
    assert journal.record_incident(incident(access, line, culprit=1), [client(1)], id=first) == first
    assert journal.record_incident(incident(access, line, end, culprit=1), id=first) == first
    (only,) = wait(journal.list())
    assert (only.culprit and only.culprit.pid, only.culprit_command) == (process(1).pid, "python train.py")


def test_that_the_same_client_is_there_makes_two_incidents_not_one(journal: Journal) -> None:
    now = time.monotonic()
    arrival = came(now - 100, 1)
    names = [journal.record_incident(incident(arrival, fault(now + n, 1), culprit=1)) for n in (0, 1)]
    assert len(set(names)) == 2


def test_an_id_that_is_given_decides(journal: Journal) -> None:
    name = journal.record_incident(incident(culprit=1))
    assert journal.record_incident(incident(culprit=2), id=name) == name
    assert len(wait(journal.list())) == 1


def test_the_list_is_newest_first_and_can_be_cut(journal: Journal) -> None:
    now = time.monotonic()
    names = [journal.record_incident(incident(fault(now + n, n), culprit=n)) for n in range(5)]
    assert [one.id for one in wait(journal.list(3))] == names[:1:-1]
    since = wait(journal.list())[1].ended
    assert [one.id for one in wait(journal.list(since=since))] == names[:2:-1]


def test_a_bundle_has_all_that_triage_needs_and_nothing_of_another_time(journal: Journal) -> None:
    now = time.monotonic()
    own = (fault(now, 1), xid(now + 0.002))
    there, gone, recent = came(now - 5000, 1), came(now - 5000, 2), came(now - 5000, 3)
    around, long_ago, later = xid(now - 5, "before"), xid(now - 500, "long ago"), xid(now + 500, "later")
    past = (there, gone, recent, long_ago, ended(now - 4000, 2), around, ended(now - 1, 3))
    for piece in (*past, *own, later):
        journal.record_evidence(piece)
    bundle = wait(journal.export(journal.record_incident(incident(*own, culprit=1))))
    assert set(bundle.evidence) == {there, recent, around, past[-1], *own}
    assert [piece.observed_at for piece in bundle.evidence] == sorted(piece.observed_at for piece in bundle.evidence)
    assert msgspec.json.decode(msgspec.json.encode(bundle), type=Bundle) == bundle
    assert (bundle.version, bundle.dropped) == (1, 0)


def test_an_unknown_id_and_a_closed_journal_are_said_so(journal: Journal) -> None:
    with pytest.raises(KeyError):
        wait(journal.get("20000101-000000-1"))
    with pytest.raises(KeyError):
        wait(journal.export("' OR 1=1 --"))
    journal.record_decision("20000101-000000-1", "kind", "for nobody")
    wait(journal.flush())
    assert journal.dropped == 0
    journal.close()
    journal.record_incident(incident())
    assert journal.dropped == 1
    with pytest.raises(JournalError):
        wait(journal.flush())


def test_what_no_database_takes_costs_only_itself(journal: Journal) -> None:
    journal.record_evidence(fault(float("nan")))
    journal.remember("key", "\ud800")
    name = journal.record_incident(incident())
    assert wait(journal.get(name)).id == name
    assert journal.dropped == 2


def test_a_defect_in_a_write_is_reported_and_the_next_write_is_done(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[threading.ExceptHookArgs] = []
    monkeypatch.setattr(threading, "excepthook", reported.append)
    put = Store.put_meta

    def defective(store: Store, key: str, value: str) -> int:
        if key == "first":
            raise ZeroDivisionError
        return put(store, key, value)

    monkeypatch.setattr(Store, "put_meta", defective)
    journal = Journal.open(path)
    journal.remember("first", "is lost")
    wait(journal.flush())
    journal.remember("second", "is kept")
    assert journal.close()
    assert [each.exc_type for each in reported] == [ZeroDivisionError]
    again = Journal.open(path)
    assert (again.recall("first"), again.recall("second")) == (None, "is kept")
    again.close()


def test_a_disk_that_hangs_delays_no_caller_and_incidents_have_room_when_evidence_has_none(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()
    put = Store.put_meta

    def hang(store: Store, key: str, value: str) -> int:
        hangs.set()
        assert goes_on.wait(60)
        return put(store, key, value)

    monkeypatch.setattr(Store, "put_meta", hang)
    heard: list[tuple[str, Mapping[str, Any]]] = []
    journal = Journal.open(path, JournalLimits(queue=40), on_notice=lambda kind, data: heard.append((kind, data)))
    journal.remember("first", "waits for the disk")
    assert hangs.wait(60)
    for number in range(100):
        journal.record_evidence(fault(float(number)))
    assert journal.dropped == 70, "three quarters of forty are for evidence"
    names = [journal.record_incident(incident(culprit=n)) for n in range(11)]
    assert journal.dropped == 71
    with pytest.raises(JournalBusyError):
        wait(journal.flush())
    goes_on.set()
    journal.close()
    assert sum(data["count"] for kind, data in heard if kind == "journal_dropped") == 71
    again = Journal.open(path)
    assert {one.id for one in wait(again.list())} == set(names[:10])
    again.close()


def test_an_abandoned_query_does_no_harm(journal: Journal) -> None:
    async def ask() -> None:
        asking = asyncio.create_task(journal.list())
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        await journal.flush()

    asyncio.run(ask())


def test_the_file_is_for_its_owner_only(path: Path, journal: Journal) -> None:
    journal.record_incident(incident())
    wait(journal.flush())
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_closing_has_an_end_though_the_disk_has_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = threading.Event()
    put = Store.put_meta

    def hangs(store: Store, key: str, value: str) -> int:
        assert disk.wait(20)
        return put(store, key, value)

    monkeypatch.setattr(Store, "put_meta", hangs)
    journal = Journal.open(path)
    journal.remember("key", "value")
    assert not journal.close(0.05)
    disk.set()
    assert journal.close(20.0)
    assert Journal.open(path).close(20.0)
