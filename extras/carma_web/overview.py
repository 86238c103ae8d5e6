"""The first page: the GPUs, a card each, and who waits for them: the jobs that run, then the line,
filtered and a page at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.routing import Route

from carma_web.gpu import Card
from carma_web.once import once
from carma_web.page import Page
from carmad.readable import clean
from cli import client, overview
from cli.overview import params, split_ended, vram, where
from cli.text import NOTHING, memory, parts

if TYPE_CHECKING:
    from carmad.api.gpus import GpuOut, GpusOut
    from carmad.api.job import JobOut
    from carmad.api.outlook import StartOut
    from carmad.api.server import StatusOut

ROWS = 100  # of a page of all jobs
ENDED_ROWS = 10


@dataclass(frozen=True, slots=True)
class Row:
    """A job as its row in a table shows it. `id`: also of the row's element."""

    job: JobOut
    start: StartOut | None = None

    @property
    def id(self) -> str:
        """Of the job whose page tells of it; of an array's tasks, the first."""
        return str(self.job["id"])

    @property
    def label(self) -> str:
        return self.job["label"]

    @property
    def link(self) -> str:
        """To its page; of an array's tasks, to the array's."""
        return self.label.partition("_[")[0]

    @property
    def count(self) -> int:
        """Of jobs: tasks of an array that wait for the same reason are one row."""
        return self.job.get("count", 1)

    @property
    def name(self) -> str:
        return " ".join(filter(None, (clean(self.job["name"]), params(self.job))))

    @property
    def memory(self) -> str:
        """What it holds, of what it needs."""
        return vram(self.job).removeprefix(f"{NOTHING}/")

    @property
    def peak(self) -> str:
        return memory(self.job["memory"]["peak_mib"])

    @property
    def where(self) -> str:
        on = where(self.job)
        return f"GPU {on}" if self.job["gpus"] else on

    @property
    def failure(self) -> str:
        """Why it has failed, in a line; "" if it has not."""
        how = self.job.get("exit")
        if how is None or how["cause"] == "success":
            return ""
        return clean(how["evidence"] or how["cause"].replace("_", " "))

    @property
    def since(self) -> str | None:
        return self.job.get("ended_at") or self.job["started_at"] or self.job["submitted_at"]

    @property
    def text(self) -> str:
        """That the filter looks into."""
        words = self.label, self.name, self.job["user"], self.job["state"], self.where
        return " ".join([*words, *self.job.get("argv", ())]).casefold()


class Line:
    """`asked`: the page's parameters. `user`, `q` (a text) and `from` (the first row) look through
    all live jobs; without them, it is the front: what runs, the first in line and one's own."""

    def __init__(self, asked: Mapping[str, str], status: Callable[[], StatusOut]) -> None:
        self._status = status
        self.user = asked.get("user", "")
        self.text = asked.get("q", "")
        first = asked.get("from", "")
        self.first = int(first) if first.isdecimal() and 0 < len(first) < 8 else 1
        self.is_front = not (self.user or self.text or first)

    @once
    def every(self) -> Sequence[Row]:
        """The jobs that run, and the others in the order of the line."""
        starts: dict[int, tuple[int, StartOut]] = {
            start["id"]: (place, start)
            for place, start in enumerate(
                client.get("/v1/starts", user=self.user or None)["starts"]
            )
        }

        def row(job: JobOut) -> Row:
            return Row(job, starts[job["id"]][1] if job["id"] in starts else None)

        if self.is_front:
            return [row(job) for job in split_ended(self._status()["jobs"])[0]]
        jobs = client.get("/v1/jobs", fold=True, user=self.user or None)["jobs"]
        words = self.text.casefold().split()
        rows = [one for one in map(row, jobs) if all(word in one.text for word in words)]

        def place(one: Row) -> float:
            if one.job["gpus"]:
                return -1
            return starts[one.job["id"]][0] if one.start else math.inf

        return sorted(rows, key=place)

    @property
    def users(self) -> Sequence[str]:
        """Suggestions for the filter."""
        return sorted({row.job["user"] for row in self.every})

    @property
    def rows(self) -> Sequence[Row]:
        return self.every if self.is_front else self.every[self.first - 1 :][:ROWS]

    @property
    def more(self) -> int:
        """Jobs behind the front."""
        return self._status()["more"] if self.is_front else 0

    @property
    def others(self) -> Iterator[tuple[str, int]]:
        """Further pages of rows: what they are, and their first row."""
        if self.first > 1:
            yield "Previous", max(1, self.first - ROWS)
        if not self.is_front and self.first + ROWS <= len(self.every):
            yield "Next", self.first + ROWS

    @property
    def counts(self) -> str:
        """In words: how many jobs there are, or were found."""
        running = sum(bool(row.job["gpus"]) for row in self.every)
        count = sum(row.count for row in self.every) + self.more
        jobs = "job" if count == 1 else "jobs"
        found = " found" if self.user or self.text else ""
        shown = f"; shown: {self.first}–{self.first + len(self.rows) - 1}" if self.rows else ""
        return (
            f"{count:,} {jobs}{found}: {running} on GPUs, {count - running:,} waiting"
            f"{'' if self.is_front or len(self.rows) == len(self.every) else shown}"
        )

    @once
    def past(self) -> Sequence[Row]:
        """The last that ended."""
        answer = client.get("/v1/history", order="ended", limit=ENDED_ROWS, fold=True)
        return [Row(job) for job in answer["jobs"]]


KEPT = ("user", "q", "from")  # parameters that links on the page keep
SHOWN = 4  # lines for jobs on a card
MANY = 16  # GPUs: of more, cards are as small as on a phone


class Overview(Page):
    template = "overview.html.j2"
    title = "GPUs"
    section = "/"

    @once
    def gpus(self) -> GpusOut:
        found: GpusOut = client.get("/v1/gpus")
        return found

    @property
    def dense(self) -> bool:
        return len(self.gpus["gpus"]) > MANY

    @once
    def line(self) -> Line:
        return Line(self.request.query_params, lambda: self.status)

    @property
    def headline(self) -> Sequence[tuple[str, str]]:
        """Facts about the server, each with its style."""
        return parts(overview.headline(self.status))

    def card(self, gpu: GpuOut) -> Card:
        return Card(gpu, self.request.app.state.hues, SHOWN)

    @property
    def limit(self) -> float:
        """Of SM activity."""
        found: float = self.gpus["thresholds"]["risk"]["sm_active"]
        return found

    def address(self, **changes: object) -> str:
        """This page with other parameters."""
        asked = self.request.query_params
        kept = {name: asked[name] for name in KEPT if asked.get(name)}
        return f"{self.base}/?{urlencode(kept | changes)}"


ROUTES = [Route("/", Overview.show)]
