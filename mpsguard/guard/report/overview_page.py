"""The guard's page: an overview as one self-contained HTML document, which loads itself again without a script.

As in the report of an incident, nearly every text is untrusted. `_safe` escapes each one, ours too; the
Content-Security-Policy allows one style sheet, and neither scripts nor loads.
"""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Final, NamedTuple
from urllib.parse import quote

from mpsguard.guard.incident import Suspect
from mpsguard.guard.journal.records import IncidentSummary
from mpsguard.guard.model import Client, Watched
from mpsguard.guard.report.messages import shortened
from mpsguard.guard.report.overview import Overview, OverviewClient, OverviewGpu, OverviewLane, OverviewSensor
from mpsguard.guard.report.page import CARDS, COLOURS, security_policy
from mpsguard.linux.processes.procfs import printable
from mpsguard.linux.times import age, clock

REFRESH_S: Final = 5
"""Seconds after which the page loads itself again."""
_LONGEST_COMMAND: Final = 90
"""Characters of a command line that are shown; a longer one is shown in full on hover."""
_SHORT_CONTAINER: Final = 12
"""Characters of a container's id that are shown, as container runtimes do."""
_SHORT_POD: Final = 8
"""Those of a pod's UID: up to its first dash."""

STYLE: Final = (
    COLOURS
    + """
body{margin:0 auto;max-width:76rem;padding:1.25rem 1.25rem 3rem;background:var(--paper);color:var(--ink);
 font:16px/1.45 system-ui,"DejaVu Sans",sans-serif}
header{display:flex;flex-wrap:wrap;align-items:baseline;gap:.2rem 1rem}
h1{font-size:1rem;font-weight:600;color:var(--quiet);margin:0;overflow-wrap:anywhere}
h2{font-size:1.1rem;margin:1.8rem 0 .5rem}
.health{font-size:1.35rem;font-weight:600;margin:.35rem 0 0;border-left:.35rem solid var(--quiet);
 padding:.1rem 0 .1rem .8rem}
.health.good{border-color:var(--guard)} .health.doubt{border-color:var(--candidate)}
.health.bad{border-color:var(--culprit)}
ul{margin:.6rem 0 0;padding-left:1.3rem} li{overflow-wrap:anywhere}
.quiet{color:var(--quiet);margin:0} p.quiet{font-size:.875rem}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th{text-align:left;font-weight:600;color:var(--quiet);border-bottom:2px solid var(--line);
 padding:.3rem .8rem .3rem 0;white-space:nowrap}
td{border-bottom:1px solid var(--line);padding:.3rem .8rem .3rem 0;vertical-align:top;white-space:nowrap}
td.long{white-space:normal;overflow-wrap:anywhere;min-width:12rem}
.number{text-align:right;font-variant-numeric:tabular-nums}
.good{color:var(--guard)} .doubt{color:var(--candidate)} .bad{color:var(--culprit)}
td.good,td.bad{font-weight:600}
.health{color:var(--ink)}
a{color:var(--victim)}
footer{margin-top:2.5rem;color:var(--quiet);font-size:.8rem}
@media (max-width:46rem){
 body{padding:1rem .8rem 2rem}
 .scroll{overflow-x:visible}
"""
    + CARDS
    + """ td:first-child{font-weight:600;grid-column:1/-1} td.none{display:none}
 .lines tr{display:flex;flex-wrap:wrap;border-width:0 0 1px;border-radius:0;margin:0;padding:.2rem 0;background:none}
 .lines td,.lines td.long{display:block} .lines td::before{content:none} .lines td.long{flex-basis:100%}
}
"""
)
POLICY: Final = f"{security_policy(STYLE)}; frame-ancestors 'none'"
"""Sent as a header: browsers ignore the last part of it in a document."""

_KINDS: Final = {
    "healthy": "good",
    "ACTIVE": "good",
    "degraded": "doubt",
    "INITIALIZING": "doubt",
    "UNKNOWN": "doubt",
    "fault": "bad",
    "FAULT": "bad",
    "FAILING": "bad",
    "RECOVERING": "doubt",
    "DOWN": "bad",
    "no": "doubt",
}
"""Style of a word; the word itself says the same, for readers that do not see the colour."""


class _Cell(NamedTuple):
    text: str
    style: str = ""
    href: str = ""


def render(overview: Overview, *, everything: bool, refreshing: bool = True) -> str:
    """Return the whole document.

    Args:
        overview: What it shows.
        everything: Whether its reader may see what belongs to other users: command lines, culprits, reports.
        refreshing: Whether it loads itself again.
    """
    again = f'<meta http-equiv="refresh" content="{REFRESH_S}">' if refreshing else ""
    other = '<a href="?still">stop</a>' if refreshing else '<a href="?">refresh again</a>'
    how = f"Loads itself again every {REFRESH_S} s ({other})." if refreshing else f"Stands still ({other})."
    health = f"{overview.health.capitalize()}, up for {age(overview.started_at, overview.at)}"
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            again,
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{_safe(overview.health)}: mpsguard on {_safe(overview.host)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            f"<header><h1>mpsguard {_safe(overview.version)} on {_safe(overview.host)}</h1>",
            f'<p class="quiet">{clock(overview.at)}</p></header>',
            "<main>",
            f'<p class="health {_KINDS.get(overview.health, "")}">{_safe(health)}</p>',
            *_list(overview.problems),
            "<h2>Lanes</h2>",
            *_table(_LANES, (_lane(lane, overview.at) for lane in overview.lanes)),
            *_gpus(overview),
            f"<h2>Clients ({len(overview.clients) + overview.clients_left_out})</h2>",
            *_clients(overview, everything),
            "<h2>Incidents</h2>",
            *_incidents(overview, everything),
            "<h2>Sensors</h2>",
            *_table(_SENSORS, (_sensor(sensor, overview.problems, everything) for sensor in overview.sensors), "lines"),
            "</main>",
            f"<footer>{how} {_WHOLE if everything else _PART}</footer>",
            "</body>",
            "</html>",
            "",
        )
    )


_WHOLE: Final = "Command lines are shown as they were found, and are not verified."
_PART: Final = (
    "Every process that can connect may read this page, so it leaves out command lines, culprits and reports. The same "
    "page on the guard's own socket (http.sock) has them."
)
_GPUS: Final = ("GPU", "Model", "Memory", "Clients", "State")
_LANES: Final = ("Lane", "Domain", "Role", "State", "For", "Clients", "Waiting", "Reason")
# fmt: off
_CLIENTS: Final = (
    "PID", "UID", "Class", "Share", "Memory", "Lane", "Watched", "For", "Container", "Survives", "Command",
)
# fmt: on
_INCIDENTS: Final = ("Incident", "Began", "Fault", "Xids", "Lane", "Confidence", "Victims", "Culprit")
_SENSORS: Final = ("Sensor", "Sees", "Detail")
_NUMBERS: Final = frozenset({"PID", "UID", "Share", "Memory", "For", "Clients", "Waiting", "Victims"})
_LONG: Final = frozenset({"Reason", "Command", "Culprit", "Detail"})


def _safe(text: str) -> str:
    """Return a text for any place in the document: without markup, control characters and halves of characters."""
    return escape(printable(text))


def _list(texts: Sequence[str]) -> Iterator[str]:
    """Yield a list, or nothing for none."""
    if texts:
        yield f"<ul>{''.join(f'<li>{_safe(text)}</li>' for text in texts)}</ul>"


def _table(columns: Sequence[str], rows: Iterable[Sequence[_Cell]], style: str = "") -> Iterator[str]:
    """Yield a table; a row with fewer cells than columns ends earlier, and the columns that no row has are left out."""
    made = list(rows)
    used = columns[: max(map(len, made), default=0)]
    if not made:
        yield '<p class="quiet">None.</p>'
        return
    heads = "".join(f'<th scope="col"{_class(name in _NUMBERS and "number")}>{name}</th>' for name in used)
    yield f'<div class="scroll"><table{_class(style)}><thead><tr>{heads}</tr></thead><tbody>'
    for row in made:
        yield f"<tr>{''.join(_cell(name, cell) for name, cell in zip(used, row, strict=False))}</tr>"
    yield "</tbody></table></div>"


def _cell(column: str, cell: _Cell) -> str:
    text = _safe(shortened(cell.text, _LONGEST_COMMAND))
    whole = f' title="{_safe(cell.text)}"' if len(cell.text) > _LONGEST_COMMAND else ""
    if cell.href:
        text = f'<a href="{_safe(cell.href)}">{text}</a>'
    styles = _class(
        column in _NUMBERS and "number", column in _LONG and "long", cell.style, cell.text in ("-", "") and "none"
    )
    return f'<td data-label="{column}"{styles}{whole}>{text}</td>'


def _class(*names: str | bool) -> str:
    kept = " ".join(name for name in names if isinstance(name, str) and name)
    return f' class="{kept}"' if kept else ""


def _word(text: str) -> _Cell:
    return _Cell(text, _KINDS.get(text, ""))


def _lane(lane: OverviewLane, at: float) -> tuple[_Cell, ...]:
    report = lane.report
    return (
        _Cell(report.name),
        _Cell(report.domain),
        _Cell(lane.role),
        _word(report.state.value),
        _Cell(age(report.since, at)),
        _Cell(str(lane.clients)),
        _Cell(str(lane.waiting) if lane.role == "active" else "-"),
        _Cell(report.reason),
    )


def _gpus(overview: Overview) -> Iterator[str]:
    if overview.gpus:
        yield "<h2>GPUs</h2>"
        yield from _table(_GPUS, (_gpu(each) for each in overview.gpus))


def _gpu(gpu: OverviewGpu) -> tuple[_Cell, ...]:
    known = gpu.used is not None and gpu.total is not None
    return (
        _Cell(gpu.address),
        _Cell(gpu.model or "-"),
        _Cell(f"{_bytes(gpu.used or 0)} of {_bytes(gpu.total or 0)}" if known else "-"),
        _Cell(str(gpu.clients)),
        _Cell("a fault of the device stands", "bad") if gpu.faulty else _Cell("no fault stands"),
    )


def _clients(overview: Overview, everything: bool) -> Iterator[str]:
    yield from _table(_CLIENTS, (_client(each, overview.at, everything) for each in overview.clients))
    if overview.clients_left_out:
        yield f'<p class="quiet">{overview.clients_left_out} more are not shown: mpsguard-ctl clients.</p>'


def _client(view: OverviewClient, at: float, everything: bool) -> tuple[_Cell, ...]:
    client = view.client
    cells = (
        _Cell(str(client.process.pid)),
        _Cell(str(client.uid)),
        _Cell(client.service_class or "-"),
        _Cell("-" if client.sm_share is None else f"{client.sm_share:g} %"),
        _memory(view),
        _Cell(_lane_of(client, at) if everything else client.lane),
        _watched(view, everything),
        _Cell(age(client.connected_at, at)),
        _Cell(f"pod {view.pod[:_SHORT_POD]}" if view.pod else (client.container or "-")[:_SHORT_CONTAINER]),
    )
    return (*cells, _Cell(view.survives or "-"), _Cell(client.command or "-")) if everything else cells


def _watched(view: OverviewClient, everything: bool) -> _Cell:
    if not everything or view.watched in (Watched.YES, Watched.BY_NONE):
        return _word(view.watched.value)
    return _Cell(f"{view.watched.value}: {view.watch_reason}", f"{_KINDS.get(view.watched.value, '')} long".strip())


def _lane_of(client: Client, at: float) -> str:
    if client.second_lane is not None:
        return f"{client.lane}, second driver on {client.second_lane}"
    if client.lane_before is None or client.went_over_at is None:
        return client.lane
    return f"{client.lane}, from {client.lane_before} {age(client.went_over_at, at)} ago"


def _memory(view: OverviewClient) -> _Cell:
    if view.memory is None:
        return _Cell("-")
    return _Cell(f"{_bytes(view.memory)}: over its limit", "doubt") if view.exceeds else _Cell(_bytes(view.memory))


def _incidents(overview: Overview, everything: bool) -> Iterator[str]:
    if overview.incidents_unknown:
        yield f'<p class="quiet">Not known: {_safe(overview.incidents_unknown)}</p>'
    else:
        yield from _table(_INCIDENTS, (_incident(each, overview.at, everything) for each in overview.incidents))


def _incident(incident: IncidentSummary, at: float, everything: bool) -> tuple[_Cell, ...]:
    victims = [each for each in incident.victims if each != incident.culprit]
    cells = (
        _Cell(incident.id, href=f"incidents/{quote(incident.id, safe='')}" if everything else ""),
        _Cell(f"{age(incident.began, at)} ago"),
        _Cell(incident.fault_class.value),
        _Cell(", ".join(map(str, incident.xids)) or "-"),
        _Cell(incident.lane or "-"),
        _Cell(incident.confidence.value),
        _Cell(str(len(victims))),
    )
    return (*cells, _Cell(_culprit(incident))) if everything else cells


def _culprit(incident: IncidentSummary) -> str:
    culprit: Suspect | None = incident.culprit
    if culprit is not None:
        return f"{culprit.pid} {incident.culprit_command or ''}".strip()
    return f"one of {len(incident.candidates)}" if incident.candidates else "not known"


def _sensor(sensor: OverviewSensor, problems: Sequence[str], everything: bool) -> tuple[_Cell, ...]:
    # Most sensors are optional: an absent one is a warning where the health says so.
    missed = any(problem.startswith(f"sensor {sensor.name} is absent") for problem in problems)
    cells = (_Cell(sensor.name), _Cell("yes" if sensor.present else "absent", "doubt" if missed else ""))
    return (*cells, _Cell(sensor.detail)) if everything else cells


def _bytes(size: int) -> str:
    """Return a size with three digits or so: 0 MiB, 512 MiB, 1.5 GiB."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
