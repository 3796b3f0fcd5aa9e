"""The screen: three tables that are asked for again and again, and a question before a client is terminated."""

from collections.abc import Callable, Sequence
from typing import Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Static

from mpsguard.cli.dashboard import rows
from mpsguard.cli.dashboard.rows import Column, Row
from mpsguard.cli.dashboard.snapshot import Snapshot, take
from mpsguard.cli.tables import coloured
from mpsguard.guard.control_api import async_client
from mpsguard.guard.control_api.async_client import NoAnswerError
from mpsguard.guard.control_api.messages.clients import TerminateArguments, TerminateResult
from mpsguard.guard.model import KILLED_WITHIN

GRACE: Final = 10.0
"""Seconds from SIGTERM to SIGKILL for a client that is terminated here."""
_PADDING: Final = 1
"""Blanks on either side of a cell."""

_TABLES: Final[dict[str, tuple[Sequence[Column], Callable[[Snapshot], tuple[Row, ...]]]]] = {
    "lanes": (rows.LANES, rows.lanes),
    "clients": (rows.CLIENTS, rows.clients),
    "incidents": (rows.INCIDENTS, rows.incidents),
}


class Question(ModalScreen[bool]):
    """Yes or no; anything but ``y`` is no."""

    BINDINGS = [  # noqa: RUF012  # textual's own declaration
        Binding("y", "answer(True)", "Yes"),
        Binding("n,escape,enter,q", "answer(False)", "No"),
    ]

    def __init__(self, text: str) -> None:
        """``text``: the question."""
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        """Build it."""
        yield Static(Text(f"{self._text}\n\ny: yes   n: no"), id="question")

    def action_answer(self, yes: bool) -> None:
        """Close with the answer."""
        self.dismiss(yes)


class Dashboard(App[None]):
    """Lanes, clients and incidents of one guard."""

    TITLE = "mpsguard-ctl top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    #lanes { height: auto; max-height: 30%; }
    #clients { height: 1fr; min-height: 5; }
    #incidents { height: auto; max-height: 35%; }
    #said { height: auto; max-height: 2; }
    Question { align: center middle; }
    #question { width: 70%; height: auto; border: round; padding: 1 2; background: $surface; }
    """
    BINDINGS = [  # noqa: RUF012  # textual's own declaration
        Binding("q", "quit", "Quit"),
        Binding("t", "terminate", "Terminate client"),
        Binding("p", "pause", "Pause"),
        Binding("tab", "focus_next", "Next table", show=False),
    ]

    def __init__(self, run_directory: str, domain: str | None, interval: float, within: float) -> None:
        """Create it.

        Args:
            run_directory: the guard's.
            domain: show clients of that one alone.
            interval: seconds between two looks.
            within: seconds for an answer of the guard.
        """
        super().__init__()
        self._run_directory = run_directory
        self._domain = domain
        self._interval = interval
        self._within = within
        self._snapshot = Snapshot()
        self._looking = False
        self._paused = False

    def compose(self) -> ComposeResult:
        """Build it."""
        yield Static(id="head")
        for name in _TABLES:
            table: DataTable[Text] = DataTable(id=name, cursor_type="row", cell_padding=_PADDING, zebra_stripes=True)
            table.cursor_foreground_priority = "renderable"
            yield table
        yield Static(id="said")
        yield Footer()

    async def on_mount(self) -> None:
        """Look at once, and then again and again."""
        self.query_one("#clients").focus()
        self.set_interval(self._interval, self._look)
        await self._look()

    def on_resize(self) -> None:
        """Choose columns for the new width."""
        self._show()

    def action_pause(self) -> None:
        """Stop looking, or go on."""
        self._paused = not self._paused
        self._show()

    def action_terminate(self) -> None:
        """Ask whether the client under the cursor is to be terminated, and do so."""
        table = self.query_one("#clients", DataTable)
        found = rows.clients(self._snapshot)
        if not found:
            return
        row = found[table.cursor_row]
        pid, command = int(row.cells[0]), row.cells[-1]

        def answered(yes: bool | None) -> None:
            if yes:
                self.run_worker(self._terminate(pid), exclusive=False)

        asked = f"End the GPU work of client {pid}, then the process (SIGTERM, {GRACE:g} s later SIGKILL)?\n\n{command}"
        self.push_screen(Question(asked), answered)

    async def _terminate(self, pid: int) -> None:
        within = self._within + GRACE + KILLED_WITHIN
        self._say(f"client {pid}: its GPU work is being ended …")
        asked = TerminateArguments(pid, "TERM", self._domain, GRACE, answer_within=self._within)
        try:
            done = await async_client.ask(self._run_directory, "terminate", asked, TerminateResult, within)
        except NoAnswerError as error:
            self._say(f"client {pid}: {error}")
            return
        if done.terminated:
            self._say(f"client {pid}: GPU work ended; the process {'has ended' if done.ended else 'lives'}")
        else:
            self._say(f"client {pid}: not terminated: {done.answer or 'no answer'}")
        await self._look()

    async def _look(self) -> None:
        # A guard that is slow to answer is not asked more and more.
        if self._looking or self._paused:
            return
        self._looking = True
        try:
            self._snapshot = await take(self._run_directory, self._domain, self._within)
        finally:
            self._looking = False
        self._show()

    def _show(self) -> None:
        if not self.query("#head"):
            # An answer that comes as the screen is taken down.
            return
        head = rows.heading(self._snapshot) + (" (paused)" if self._paused else "")
        self.query_one("#head", Static).update(Text(head))
        for name, (columns, of) in _TABLES.items():
            _fill(self.query_one(f"#{name}", DataTable), columns, of(self._snapshot), self.size.width)

    def _say(self, text: str) -> None:
        self.query_one("#said", Static).update(Text(text))


def _fill(table: DataTable[Text], columns: Sequence[Column], found: Sequence[Row], width: int) -> None:
    """Show these rows; the cursor stays on the row on which it was, or on its place if that is gone."""
    keys = [row.key for row in found]
    place = table.cursor_row
    before = list(table.rows)
    key = before[place].value if place < len(before) else None
    table.clear(columns=True)
    # One less for the bar at the side that a long table has.
    room = width - 1
    numbers = rows.shown(columns, room)
    for number, columns_width in zip(numbers, rows.widths(columns, room, 2 * _PADDING), strict=True):
        table.add_column(columns[number].heading, width=columns_width)
    for row in found:
        table.add_row(*(_cell(row.cells[number]) for number in numbers), key=row.key)
    if found:
        table.move_cursor(row=keys.index(key) if key in keys else min(place, len(found) - 1))


def _cell(text: str) -> Text:
    """Return a cell; what a client wrote is text, and never markup."""
    cell = coloured(text)
    cell.no_wrap, cell.overflow = True, "ellipsis"
    return cell
