"""`carma top` and `carma queue --watch`: the jobs as a list to sort and to search, below the host
and its GPUs, with a page for each job. The screen is textual's."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

import psutil
from rich.text import Text
from textual.app import App
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Footer, Input, Static

from carma_client.logs import tail
from carmad.errors import CarmaError
from carmad.readable import clean
from cli import client, dashboard, output, overview, render
from cli.options import user_of
from cli.overview import COLUMNS
from cli.problems import INTERRUPTED
from cli.text import draw, drawn, height, in_style, styled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from textual.app import ComposeResult
    from textual.binding import BindingType
    from textual.events import Key, Resize

    from cli.text import Block, Column

WITHIN_S = 5.0  # for an answer
PAST_EVERY_S, STEP_S = 10.0, 60
TAIL_LINES = 1000  # of a log
LEAST_JOBS = 3  # lines that the head leaves them, with their header
SORTS = ("", "-time", "-vram", "user", "name")  # columns; the first: as the daemon sends them
SEARCHED = ("jobid", "name", "params", "user", "state", "where", "command")
EMPTY = "no jobs: submit one with `carma submit -- COMMAND`"
OF_LIST = ("page", "sort", "search", "mine", "clear")  # keys
PAGES = {"why": "why it waits, or what became of it", "show": "all about it", "log": "its log"}


def run(ask: Callable[[], Any], every_s: float, fields: Sequence[str] = ()) -> int:
    """`ask`: for the status, or for jobs alone. Raises CarmaError if it fails at first."""
    app = Top(ask, every_s, fields)
    return app.run() or app.return_code or 0


def status() -> Any:
    return client.get("/v1/status", WITHIN_S)


def read_host() -> dashboard.Host:
    memory = psutil.virtual_memory()
    used, total = memory.total - memory.available, memory.total
    return dashboard.Host(psutil.cpu_percent() / 100, used >> 20, total >> 20)


class Jobs(DataTable[Text]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "cursor_down", show=False),
        Binding("k", "cursor_up", show=False),
    ]


class Top(App[int]):
    """`answer`: what the daemon said last."""

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { overflow: hidden; }
    VerticalScroll, Jobs { scrollbar-size-vertical: 1; }
    #head { height: auto; }
    Jobs { height: 1fr; overflow-x: hidden; }
    Jobs:nocolor > .datatable--cursor { text-style: reverse; }
    #note { height: auto; }
    Input { display: none; border: none; height: 1; }
    #text { padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "Quit"),
        Binding("w", "page('why')", "Why"),
        Binding("l", "page('log')", "Log"),
        Binding("c", "cancel", "Cancel"),
        Binding("s", "sort", "Sort"),
        Binding("slash", "search", "Search"),
        Binding("m", "mine", "Mine"),
        Binding("escape", "clear", show=False),
        Binding("ctrl+c", "interrupt", show=False),
        Binding("ctrl+z", "suspend_process", show=False),
    ]

    def __init__(self, ask: Callable[[], Any], every_s: float, fields: Sequence[str] = ()) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"  # the terminal's own colours
        self.answer = ask()
        self._ask = ask
        self._every_s = every_s
        self._fields = fields
        self._trouble = ""  # the daemon does not answer, or refuses
        self._sort = ""  # a column's name
        self._mine = False
        self._host = read_host()
        self._past: Any = None  # the timeline
        self._due = 0.0  # when it is asked for again
        self._one_at_a_time = asyncio.Lock()

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="head", can_focus=False):
            yield Static()
        yield Jobs(cursor_type="row", header_height=1)
        yield Static(id="note")
        yield Input(placeholder="words of a job", compact=True)
        yield Footer(compact=True)

    def on_mount(self) -> None:
        for signum in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signum, self.exit, 128 + signum)
        self.query_one(Jobs).focus()
        self.run_worker(self._keep_up())

    # -- what it knows

    async def ask(self, what: Callable[[], Any]) -> Any:
        """Ask the daemon without holding up keys. Raises CarmaError."""
        async with self._one_at_a_time:
            return await asyncio.to_thread(what)

    async def _keep_up(self) -> None:
        with suppress(NoMatches):  # on its end, the widgets may be gone before this is cancelled
            while True:
                await self._look_around()
                await asyncio.sleep(self._every_s)
                await self.look()

    async def look(self) -> None:
        """Ask again. If the daemon does not answer, what it said last stays."""
        try:
            self.answer = await self.ask(self._ask)
            self._trouble = ""
        except CarmaError as error:
            self._trouble = f"{error.message}; asking again every {self._every_s:g} s"
        self.draw()
        if isinstance(self.screen, Page):
            await self.screen.look()

    async def _look_around(self) -> None:
        """At the host and, from time to time, at the last half hour, if it can be shown."""
        self._host = read_host()
        if (
            "gpus" in self.answer
            and time.monotonic() > self._due
            and dashboard.wants_past(*self.size)
        ):
            self._due = time.monotonic() + PAST_EVERY_S
            since = datetime.now(UTC) - timedelta(seconds=dashboard.PAST_S)
            asked = {"since": since.isoformat(), "step_s": STEP_S}
            try:
                self._past = await self.ask(lambda: client.get("/v1/timeline", WITHIN_S, **asked))
            except CarmaError:
                self._past = None  # an older carmad: there are no graphs
        self.draw()

    def jobs(self) -> list[Any]:
        """Those that are listed."""
        jobs = self.answer["jobs"]
        if "gpus" in self.answer:
            live, ended = overview.split_ended(jobs)
            jobs = live + ended
        if self._mine:
            me = user_of(None, mine=True)
            jobs = [job for job in jobs if job["user"] == me]
        words = self.screen_stack[0].query_one(Input).value.lower().split()
        jobs = [job for job in jobs if all(word in _searched(job) for word in words)]
        return overview.sort(jobs, self._sort) if self._sort else jobs

    # -- the picture

    def on_resize(self, _: Resize) -> None:
        self.call_after_refresh(self.draw)

    def draw(self) -> None:
        main, found = self.screen_stack[0], self.jobs()
        jobs = found[: output.MOST_DRAWN]
        room, lines = self.size
        said = (self._trouble, "bold red") if self._trouble else (self._state(len(found)), "cyan")
        note = main.query_one("#note", Static)
        note.display = bool(said[0])
        note.update(drawn(in_style(clean(said[0]), said[1])))
        lines -= 1 + note.display  # the footer
        head = main.query_one("#head")
        head.display = "gpus" in self.answer
        if head.display:
            head.styles.max_height = max(1, lines - LEAST_JOBS)
            wanted = height([overview.top_table(jobs, room - 3, self._fields)], room - 3)
            sizes = room, lines, wanted
            its = dashboard.head(self.answer, self._past, self._host, *sizes)
            head.query_one(Static).update(its)
        self._list(main.query_one(Jobs), jobs, room - 3)  # within a blank, and a scrollbar

    def _list(self, table: Jobs, jobs: Sequence[Any], room: int) -> None:
        """Draw the jobs anew, with the selection where it was."""
        chosen, at, top = _label_at(table), table.cursor_row, table.scroll_y
        made = overview.top_table(jobs, room, self._fields)
        shown = made.fit(room)
        table.clear(columns=True)
        for column, width in shown.items():
            header = made.columns[column]
            table.add_column(_cell(in_style(header.header, "bold"), header), width=max(1, width))
        for job, row in zip(jobs, made.rows, strict=True):
            cells = (_cell(row[column], made.columns[column]) for column in shown)
            table.add_row(*cells, height=None, key=job["label"])
        labels = [job["label"] for job in jobs]
        at = labels.index(chosen) if chosen in labels else min(at, len(jobs) - 1)
        table.move_cursor(row=max(0, at), animate=False, scroll=False)
        table.scroll_to(y=top, animate=False)

    def _state(self, found: int) -> str:
        words = self.screen_stack[0].query_one(Input).value
        more = self.answer.get("more", 0) + max(0, found - output.MOST_DRAWN)
        parts = (
            EMPTY if not self.answer["jobs"] else "",
            f"and {more} more" if more else "",
            f"sorted by {self._sort.lstrip('-')}" if self._sort else "",
            "yours only" * self._mine,
            f"{found} with {words}" if words else "",
        )
        return " · ".join(filter(None, parts))

    # -- keys

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A job's page has no keys of the list."""
        return action not in OF_LIST or not isinstance(self.screen, Page)

    def _chosen(self) -> str:
        """The label of the job that is shown or selected; "" if there is none."""
        if isinstance(self.screen, Page):
            return self.screen.label
        return _label_at(self.query_one(Jobs))

    def on_data_table_row_selected(self) -> None:
        self.action_page("why")

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        header = event.label.plain
        name = next(name for name, column in COLUMNS.items() if column.header == header)
        self._sort = f"-{name}" if self._sort == name else name
        self.draw()

    def action_page(self, kind: str) -> None:
        if label := self._chosen():
            self.push_screen(Page(label, kind))

    def action_sort(self) -> None:
        at = SORTS.index(self._sort) if self._sort in SORTS else 0
        self._sort = SORTS[(at + 1) % len(SORTS)]
        self.draw()

    def action_mine(self) -> None:
        self._mine = not self._mine
        self.draw()

    def action_search(self) -> None:
        words = self.query_one(Input)
        words.display = True
        words.focus()

    def on_input_changed(self) -> None:
        self.draw()

    def on_input_submitted(self) -> None:
        self.query_one(Jobs).focus()

    def action_clear(self) -> None:
        """What is searched for."""
        words = self.query_one(Input)
        words.value, words.display = "", False
        self.query_one(Jobs).focus()

    def action_interrupt(self) -> None:
        self.exit(INTERRUPTED)

    def action_cancel(self) -> None:
        if label := self._chosen():
            self.push_screen(Question(f"cancel job {label}? [y/N]"), self._cancel_if(label))

    def _cancel_if(self, label: str) -> Callable[[bool | None], Any]:
        async def answer(agreed: bool | None) -> None:
            if not agreed:
                return
            body = {"select": label, "user": None}
            try:
                done = await self.ask(lambda: client.post("/v1/cancel", body, WITHIN_S))
                refused = [one["message"] for one in done["results"] if not one["ok"]]
            except CarmaError as error:
                refused = [error.message]
            await self.look()
            self._trouble = self._trouble or (refused[0] if refused else "")
            self.draw()

        return answer


def _label_at(table: Jobs) -> str:
    """Of the selected job."""
    if not table.row_count:
        return ""
    return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value or ""


def _cell(its: str, column: Column) -> Text:
    text = drawn(its)
    text.justify = "right" if column.right else "left"
    text.no_wrap = column.fit != "wrap"
    text.overflow = "ellipsis" if text.no_wrap else "fold"
    return text


def _searched(job: Any) -> str:
    return " ".join(COLUMNS[name].cell(job) for name in SEARCHED).lower()


class Question(ModalScreen[bool]):
    CSS = (
        "Question { align: center middle; } Question Static { width: auto; border: solid yellow; }"
    )

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        yield Static(drawn(in_style(self._text, "bold yellow")))

    def on_key(self, event: Key) -> None:
        event.stop()
        self.dismiss(event.key in ("y", "Y"))


class Page(Screen[None]):
    """A job: why it waits or what became of it, all about it, or the end of its log."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "Back"),
        *(Binding(kind[0], f"turn('{kind}')", kind.capitalize()) for kind in PAGES),
        Binding("j", "scroll(1)", show=False),
        Binding("k", "scroll(-1)", show=False),
    ]

    def __init__(self, label: str, kind: str) -> None:
        super().__init__()
        self.label = label
        self._kind = kind

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with VerticalScroll():
            yield Static(id="text")
        yield Footer(compact=True)

    async def on_mount(self) -> None:
        await self.look()

    async def action_turn(self, kind: str) -> None:
        self._kind = kind
        await self.look()

    def action_scroll(self, by: int) -> None:
        self.query_one(VerticalScroll).scroll_relative(y=by, animate=False)

    async def look(self) -> None:
        app, kind = self.app, self._kind
        assert isinstance(app, Top)
        try:
            picture = await app.ask(lambda: details(self.label, kind))
        except CarmaError as error:
            picture = [in_style(clean(error.message), "red"), clean(error.hint)]
        if not self.is_attached or kind != self._kind:
            return
        pane, title = self.query_one(VerticalScroll), f"job {self.label}: {PAGES[kind]}"
        at_end = pane.scroll_y >= pane.max_scroll_y
        self.query_one("#title", Static).update(drawn(in_style(title, "bold")))
        self.query_one("#text", Static).update(draw(picture))
        if kind == "log" and at_end:
            pane.scroll_end(animate=False)


def details(label: str, kind: str) -> list[Block]:
    """What a page says about a job. Raises CarmaError."""
    one = _one_of(label)
    if kind == "why":
        return render.why(client.get(f"/v1/jobs/{one}/why", WITHIN_S))
    job = client.get(f"/v1/jobs/{one}", WITHIN_S)
    return render.show(job) if kind == "show" else _tail(job)


def _one_of(label: str) -> str:
    """The first task of a row that stands for several: 7_2 of 7_[2-99%4]."""
    array, bracket, tasks = label.partition("_[")
    first = tasks.replace("-", ",").replace("]", ",").replace("%", ",").partition(",")[0]
    return f"{array}_{first}" if bracket else label


def _tail(job: Any) -> list[Block]:
    if job.get("stdout") is None:
        return ["its output is its owner's"]
    end = tail(job["stdout"], job, TAIL_LINES)
    return [end.why] if end.why else [styled(line) for line in end.lines]
