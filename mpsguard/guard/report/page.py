"""An incident as one self-contained HTML file: no script, no font, no picture, no network.

Nearly every text in it is untrusted: command lines, log lines, names. All of them are escaped. As a second line of
defence, the content security policy forbids scripts and external resources; the style sheet is allowed by its hash.
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from html import escape
from typing import Final

from mpsguard.guard.report import timeline
from mpsguard.guard.report.report_model import Moment, ReportModel, condensed

LIGHT: Final = {
    "paper": "#ffffff",
    "ink": "#1b1f24",
    "quiet": "#57606a",
    "line": "#d0d7de",
    "even": "#ffffff",
    "odd": "#f6f8fa",
    "accused": "#ffebe9",
    "culprit": "#b3121d",
    "candidate": "#8a4600",
    "victim": "#0a5bc4",
    "sensor": "#57606a",
    "guard": "#116329",
}
DARK: Final = {
    "paper": "#0d1117",
    "ink": "#e6edf3",
    "quiet": "#9aa4af",
    "line": "#30363d",
    "even": "#0d1117",
    "odd": "#151b23",
    "accused": "#3c1418",
    "culprit": "#ff8182",
    "candidate": "#f0a35e",
    "victim": "#79b8ff",
    "sensor": "#9aa4af",
    "guard": "#56d364",
}


def _variables(palette: dict[str, str]) -> str:
    return ";".join(f"--{name}:{colour}" for name, colour in palette.items())


COLOURS: Final = (
    f":root{{color-scheme:light dark;{_variables(LIGHT)}}}\n"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(DARK)}}}}}\n"
)
"""Style sheet with the palettes as variables, for the reader's preference."""


def security_policy(style: str) -> str:
    """Return a Content-Security-Policy that allows a page this style sheet, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


CARDS: Final = """
 table,tbody{display:block} thead{display:none}
 tr{display:grid;grid-template-columns:1fr 1fr;column-gap:1rem;border:1px solid var(--line);border-radius:.3rem;
  margin:0 0 .6rem;padding:.35rem .6rem;background:var(--odd)}
 td,td.number,td.long{display:grid;grid-template-columns:5.4rem 1fr;gap:.4rem;border:0;padding:.1rem 0;text-align:left;
  white-space:normal;overflow-wrap:anywhere;min-width:0}
 td.long{grid-column:1/-1}
 td::before{content:attr(data-label);color:var(--quiet);font-weight:400}
"""
"""Style sheet that makes a table's rows cards, for narrow windows. Each cell has its column in ``data-label``."""


STYLE: Final = (
    COLOURS
    + """
body{margin:0 auto;max-width:64rem;padding:1.5rem 1.25rem 3rem;background:var(--paper);color:var(--ink);
 font:16px/1.5 system-ui,"DejaVu Sans",sans-serif}
h1{font-size:1rem;font-weight:600;color:var(--quiet);margin:0 0 .5rem}
h2{font-size:1.1rem;margin:2rem 0 .6rem}
.verdict{font-size:1.35rem;line-height:1.35;font-weight:600;margin:0;border-left:.35rem solid var(--culprit);
 padding:.2rem 0 .2rem .9rem;overflow-wrap:break-word}
.reason{color:var(--quiet);margin:.6rem 0 0 1.25rem;overflow-wrap:break-word}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.15rem 1.2rem;margin:0}
dt{color:var(--quiet)} dd{margin:0;overflow-wrap:break-word}
figure{margin:0;overflow-x:auto}
svg{display:block;box-sizing:border-box;width:100%;min-width:44rem;border:1px solid var(--line)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th{text-align:left;font-weight:600;color:var(--quiet);border-bottom:2px solid var(--line);padding:.3rem .7rem .3rem 0}
td{border-bottom:1px solid var(--line);padding:.3rem .7rem .3rem 0;vertical-align:top;overflow-wrap:break-word}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr.culprit td{background:var(--accused)} td.role{white-space:nowrap}
td.culprit,text.track.culprit{color:var(--culprit);fill:var(--culprit);font-weight:600}
td.candidate{color:var(--candidate)} td.victim{color:var(--victim)} td.survivor,td.guard{color:var(--guard)}
svg text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:var(--ink)}
svg text.tick{fill:var(--quiet)} svg text.track.culprit{font-weight:600;fill:var(--culprit)}
.row.even{fill:var(--even)} .row.odd{fill:var(--odd)} .row.culprit{fill:var(--accused)}
.grid{stroke:var(--line)} .whisker{stroke:var(--quiet);stroke-width:2}
.mark text{font-size:10px;fill:var(--quiet)} .mark.culprit text{fill:var(--culprit);font-weight:600}
g.culprit{fill:var(--culprit)} g.candidate{fill:var(--candidate)} g.victim{fill:var(--victim)}
g.sensor{fill:var(--sensor)} g.survivor,g.guard{fill:var(--guard)}
abbr{text-decoration:underline dotted;text-underline-offset:.2em;cursor:help}
code{font:.9em ui-monospace,"DejaVu Sans Mono",monospace}
.word{white-space:nowrap}
.more{color:var(--quiet)} summary{cursor:pointer} li{overflow-wrap:anywhere}
details ul{margin:.3rem 0;padding-left:1.2rem}
.narrow{display:none}
@media (max-width:46rem){
 .wide{display:none} .narrow{display:block} .narrow svg{min-width:0} .scroll{overflow-x:visible}"""
    + CARDS
    + """ tr.culprit td{background:none} tr.culprit{background:var(--accused)}
}
footer{margin-top:2.5rem;color:var(--quiet);font-size:.8rem}
@media print{svg{min-width:0}}
"""
)

POLICY: Final = security_policy(STYLE)

_FOOTER: Final = (
    "Written by mpsguard. Times are milliseconds after the incident began; command lines and log lines are shown as "
    "they were found, and are not verified."
)


def render(report: ReportModel) -> str:
    """Return the whole file."""
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>Incident {escape(report.id)}</title>",
            f"<style>{STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            f"<h1>Incident {escape(report.id)}</h1>",
            f'<p class="verdict">{_text(report, report.verdict)}</p>',
            f'<p class="reason">{_text(report, report.reason)}</p>',
            "<h2>Timeline</h2>",
            f'<figure class="wide">{timeline.draw(report, timeline.WIDE)}</figure>',
            f'<figure class="narrow">{timeline.draw(report, timeline.NARROW)}</figure>',
            "<h2>What to do</h2>",
            *_steps(report),
            "<h2>Facts</h2>",
            "<dl>",
            *(f"<dt>{escape(name)}</dt><dd>{_fact(report, name, value)}</dd>" for name, value in report.facts),
            "</dl>",
            "<h2>Evidence</h2>",
            *_evidence(report),
            "</main>",
            f"<footer>{_FOOTER}</footer>",
            "</body>",
            "</html>",
            "",
        )
    )


_LONGEST: Final = 60
"""Characters of a command line that are shown; a longer one is shown in full on hover."""


_LONGEST_WORD: Final = 30
"""Characters of a word that is kept on one line: so many fit beside the names of the facts at 500 px."""


def _words(text: str) -> str:
    """Escape a text; browsers break lines at hyphens and slashes, and an option such as --model is one word."""
    parts = re.split(r"(\S*[-/?!|]\S*)", text)
    return "".join(
        f'<span class="word">{escape(part)}</span>' if at % 2 and len(part) <= _LONGEST_WORD else escape(part)
        for at, part in enumerate(parts)
    )


def _text(report: ReportModel, text: str) -> str:
    """Escape a text, with long command lines shortened in the middle."""
    long = [command for command in report.commands if len(command) > _LONGEST]
    if not long:
        return _words(text)
    longest_first = "|".join(re.escape(command) for command in sorted(long, key=len, reverse=True))
    parts = re.split(f"({longest_first})", text)
    return "".join(_abbreviated(part) if part in long else _words(part) for part in parts)


def _advice(text: str) -> str:
    """Escape one of our own texts; a part in backticks becomes code."""
    parts = re.split(r"`([^`]+)`", text)
    return "".join(f"<code>{_words(part)}</code>" if at % 2 else _words(part) for at, part in enumerate(parts))


def _abbreviated(command: str) -> str:
    half = (_LONGEST - 3) // 2
    return f'<abbr title="{escape(command)}">{_words(command[:half])} … {_words(command[-half:])}</abbr>'


def _steps(report: ReportModel) -> Iterable[str]:
    yield "<ol>"
    yield from (f"<li>{_advice(step)}</li>" for step in report.steps)
    yield "</ol>"


def _fact(report: ReportModel, name: str, value: str) -> str:
    """Return a fact's value; a list of many processes is folded."""
    listed = report.lists.get(name)
    if listed is None:
        return _text(report, value)
    items = "".join(f"<li>{_text(report, each)}</li>" for each in listed.names)
    return f"<details><summary>{_text(report, value)}</summary><ul>{items}</ul></details>"


def _evidence(report: ReportModel) -> Iterable[str]:
    moments = condensed(report.entries)
    yield from _table(report, moments)
    if len(moments) < len(report.entries):
        yield f"<details><summary>All {len(report.entries)} moments</summary>"
        yield from _table(report, [Moment(entry) for entry in report.entries])
        yield "</details>"
    if report.left_out:
        yield f"<p>{report.left_out} pieces of evidence in between were too many to be kept.</p>"


def _table(report: ReportModel, moments: Iterable[Moment]) -> Iterable[str]:
    yield '<div class="scroll"><table>'
    yield (
        '<thead><tr><th scope="col" class="number">#</th><th scope="col" class="number">ms</th>'
        '<th scope="col">Role</th><th scope="col">Process</th><th scope="col">What</th>'
        '<th scope="col">Seen by</th><th scope="col">Trust</th></tr></thead>'
    )
    yield "<tbody>"
    yield from (_row(report, moment) for moment in moments)
    yield "</tbody></table></div>"


def _row(report: ReportModel, moment: Moment) -> str:
    entry = moment.entry
    more = f'<div class="more">and {moment.more} more like it, until {moment.last_ms:.3f}</div>' if moment.more else ""
    role = entry.role.value
    off = f" ±{entry.off:.3f}" if entry.off else ""
    return (
        f'<tr class="{role}"><td class="number" data-label="#">{entry.number}</td>'
        f'<td class="number" data-label="ms">{entry.ms:.3f}{off}</td>'
        f'<td class="role {role}" data-label="Role">{role}</td>'
        f'<td class="long" data-label="Process"><div>{_text(report, entry.track)}</div></td>'
        f'<td class="long" data-label="What"><div>{_text(report, entry.text)}{more}</div></td>'
        f'<td data-label="Seen by">{escape(entry.source)}</td><td data-label="Trust">{escape(entry.trust)}</td></tr>'
    )
