"""The page for a screen on a wall: the GPUs, the line and the latest failures, to be read from
three metres. Whatever there is, it fits into 16:9 without scrolling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from starlette.routing import Route

from carma_web.gpu import Card
from carma_web.once import once
from carma_web.overview import Row
from carma_web.page import Page
from cli import client
from cli.overview import split_ended

if TYPE_CHECKING:
    from carmad.api.gpus import GpuOut

COLUMNS = 4
MANY = 16  # GPUs: of more, there are twice as many columns, and a card is two lines
LEAST = 4  # lines for those that wait and the failures, where a card has several
# Heights in `wall.css`, in pixels of a screen of 1080.
SCREEN, TOP, CARD, LINE, GAP, HEADING = 1080, 92, 109, 48, 14, 49


class Wall(Page):
    template = "wall.html.j2"
    title = "Wall"

    @property
    def gpus(self) -> Sequence[GpuOut]:
        return self.status["gpus"]

    @property
    def columns(self) -> int:
        return 2 * COLUMNS if self.dense else min(COLUMNS, max(1, len(self.gpus)))

    @property
    def dense(self) -> bool:
        return len(self.gpus) > MANY

    @property
    def rows(self) -> int:
        return max(1, -(-len(self.gpus) // self.columns))

    def _below(self, lines: int) -> int:
        """The lines below cards that have so many."""
        cards = self.rows * (CARD + lines * LINE + GAP)
        return max(1, (SCREEN - TOP - cards - HEADING) // LINE)

    @property
    def lines(self) -> int:
        """For a GPU's jobs: as many as a card needs, or has room for."""
        most = max((len(gpu["jobs"]) for gpu in self.gpus), default=0)
        fits = next((n for n in range(most, 1, -1) if self._below(n) >= LEAST), 1)
        return 0 if self.dense else fits

    @property
    def room(self) -> int:
        """For jobs that wait, and for failures."""
        return self._below(self.lines)

    def card(self, gpu: GpuOut) -> Card:
        return Card(gpu, self.request.app.state.hues, self.lines)

    def reason(self, row: Row) -> str:
        """Why the job waits, in a word."""
        return (row.job.get("reason") or "").strip("()").partition(":")[0]

    @once
    def line(self) -> Sequence[Row]:
        """Those that wait, in order."""
        starts = {start["id"]: start for start in client.get("/v1/starts")["starts"]}
        live = split_ended(self.status["jobs"])[0]
        return [Row(job, starts.get(job["id"])) for job in live if not job["gpus"]]

    @property
    def first(self) -> Sequence[Row]:
        return self.line[: self.room]

    @property
    def more(self) -> int:
        """Jobs behind these."""
        left = self.line[len(self.first) :]
        return sum(row.count for row in left) + self.status["more"]

    @once
    def failures(self) -> Sequence[Row]:
        answer = client.get("/v1/failures", limit=self.room)
        return [Row(job) for job in answer["jobs"]]


ROUTES = [Route("/wall", Wall.show)]
