"""The guard's page: no text of a stranger's becomes markup, and a reader of any user learns nothing private."""

from __future__ import annotations

import base64
import hashlib
import re
from enum import Enum
from typing import Any

import msgspec
import pytest

from mpsguard.guard.model import Watched
from mpsguard.guard.report import overview_page
from mpsguard.guard.report.overview import MOST_CLIENTS, Overview, shown_clients
from tests.unit.guard.report.overviews import EXAMPLE, client
from tests.unit.guard.report.test_page import Tags

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "header", "main", "footer", "h1", "h2", "p", "ul", "li"),
    *("div", "table", "thead", "tbody", "tr", "th", "td", "a"),
}
HOSTILE = ["<script>x()</script>", '"><img src=x onerror=x()>', "' onload='x()", "</style><b>", "javascript:x()"]


def with_every_text(value: Any, text: str) -> Any:
    """The same, with ``text`` in the place of each text in it."""
    match value:
        case msgspec.Struct():
            fields = {name: with_every_text(getattr(value, name), text) for name in value.__struct_fields__}
            return msgspec.structs.replace(value, **fields)
        case Enum():
            return value
        case str():
            return text
        case tuple():
            return tuple(with_every_text(each, text) for each in value)
        case _:
            return value


def rendered(overview: Overview = EXAMPLE, *, everything: bool) -> str:
    return overview_page.render(overview, everything=everything)


@pytest.mark.parametrize("everything", [True, False])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_strangers_text_opens_no_tag_and_no_attribute(hostile: str, everything: bool) -> None:
    changed = with_every_text(EXAMPLE, hostile)
    unknown = Tags(rendered(changed, everything=everything)).seen
    seen = Tags(rendered(msgspec.structs.replace(changed, incidents_unknown=""), everything=everything)).seen
    for tag, attributes in (*seen, *unknown):
        assert tag in ALLOWED
        assert set(attributes) <= {
            *("lang", "charset", "http-equiv", "content", "name", "class", "scope", "data-label", "title", "href")
        }
    links = [str(attributes["href"]) for tag, attributes in seen if tag == "a"]
    assert all(link.startswith(("incidents/", "?")) for link in links)
    assert len(links) == (3 if everything else 1)


def test_control_characters_and_half_characters_can_be_sent() -> None:
    text = rendered(with_every_text(EXAMPLE, "\x1b[31m\x00\n\ud800\u202e"), everything=True)
    assert "\x1b" not in text
    text.encode()


def test_only_this_style_sheet_is_allowed() -> None:
    style = re.search(r"<style>(.*)</style>", rendered(everything=True), re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    assert overview_page.POLICY.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "unsafe" not in overview_page.POLICY
    assert "url(" not in style.group(1)


def test_a_reader_that_may_be_any_user_learns_neither_commands_nor_culprits() -> None:
    private = with_every_text(EXAMPLE.clients, "PRIVATE")
    lines = tuple(
        msgspec.structs.replace(
            mine,
            client=msgspec.structs.replace(mine.client, command=theirs.client.command),
            watch_reason="PRIVATE" if mine.watched is Watched.NOT_YET else "",
        )
        for mine, theirs in zip(EXAMPLE.clients, private, strict=True)
    )
    incidents = tuple(
        msgspec.structs.replace(each, culprit_command="PRIVATE", reason="PRIVATE") for each in EXAMPLE.incidents
    )
    sensors = tuple(msgspec.structs.replace(each, detail="PRIVATE") for each in EXAMPLE.sensors)
    overview = msgspec.structs.replace(EXAMPLE, clients=lines, incidents=incidents, sensors=sensors)
    assert rendered(overview, everything=True).count("PRIVATE") == len(lines) + 1 + 1 + len(sensors)
    public = rendered(overview, everything=False)
    assert "PRIVATE" not in public
    assert str(EXAMPLE.incidents[0].culprit and EXAMPLE.incidents[0].culprit.pid) not in public
    assert str(EXAMPLE.clients[0].client.process.pid) in public


def test_whether_a_client_survives_is_for_readers_that_may_see_everything() -> None:
    went = {"lane": "d-1", "lane_before": "d-0", "went_over_at": EXAMPLE.at - 90}
    over, served = (
        msgspec.structs.replace(each, client=msgspec.structs.replace(each.client, **more), survives=said)
        for each, more, said in zip(EXAMPLE.clients, (went, {}), ("went over", "no: managed_memory"), strict=False)
    )
    overview = msgspec.structs.replace(EXAMPLE, clients=(over, served))
    words = ("d-1, from d-0 90s ago", "went over", "no: managed_memory")
    assert [word in rendered(overview, everything=True) for word in words] == [True] * 3
    assert [word in rendered(overview, everything=False) for word in words] == [False] * 3


def test_it_says_what_is_wrong_and_how_each_lane_is() -> None:
    text = rendered(everything=False)
    for said in ("Degraded, up for 3h", "default-1 is INITIALIZING", "ACTIVE", "11.0 GiB", "600 MiB", "40 %", "absent"):
        assert said in text
    unknown = msgspec.structs.replace(EXAMPLE, incidents=(), incidents_unknown="the disk is slow")
    assert "the disk is slow" in rendered(unknown, everything=False)


@pytest.mark.parametrize(
    ("watched", "cell"),
    [
        (Watched.YES, ">yes<"),
        (Watched.NO, 'class="doubt">no<'),
        (Watched.NOT_YET, ">not yet<"),
        (Watched.BY_NONE, 'class="none">-<'),
    ],
)
def test_what_no_sensor_could_watch_is_no_warning(watched: Watched, cell: str) -> None:
    alone = msgspec.structs.replace(EXAMPLE.clients[0], watched=watched, watch_reason="")
    text = rendered(msgspec.structs.replace(EXAMPLE, clients=(alone,)), everything=False)
    assert re.findall(r'data-label="Watched"([^<]*<)', text) == [f" {cell}" if cell.startswith("class") else cell]


def test_a_sensor_is_missed_where_the_health_says_so() -> None:
    assert 'class="doubt">absent<' not in rendered(everything=False)
    missed = msgspec.structs.replace(EXAMPLE, problems=("sensor gpu cores is absent, so ...",))
    assert 'class="doubt">absent<' in rendered(missed, everything=False)


def test_a_gpu_has_a_row_with_its_memory() -> None:
    text = rendered(everything=False)
    row = re.search(r"<tr><td data-label=\"GPU\".*?</tr>", text)
    assert row is not None
    for said in ("0000:18:00", "NVIDIA H200", "21.0 GiB of 141.0 GiB", ">4<", "no fault stands"):
        assert said in row.group()
    faulty = tuple(msgspec.structs.replace(each, faulty=True, used=None) for each in EXAMPLE.gpus)
    assert "a fault of the device stands" in rendered(msgspec.structs.replace(EXAMPLE, gpus=faulty), everything=False)
    assert "GPUs" not in rendered(msgspec.structs.replace(EXAMPLE, gpus=()), everything=False)


def test_it_loads_itself_again_unless_it_is_to_stand_still() -> None:
    assert 'http-equiv="refresh"' in rendered(everything=False)
    assert (
        "refresh"
        not in Tags(
            overview_page.render(EXAMPLE, everything=False, refreshing=False).replace("refresh again", "")
        ).seen.__repr__()
    )


def test_one_users_clients_leave_room_for_anothers() -> None:
    crowd = [client(1000 + number, 1001, "x").client for number in range(3 * MOST_CLIENTS)]
    latest = [client(9000 + number, 1002, "y", connected_at=2e9).client for number in range(5)]
    shown = shown_clients([*crowd, *latest])
    assert len(shown) == MOST_CLIENTS
    assert shown[-5:] == latest
    assert shown_clients(latest) == latest
