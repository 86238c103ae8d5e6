"""One's ended jobs, or for administrators everybody's: searched, sorted, and a page at a
time. Tasks of an array that ended alike are a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from starlette.routing import Route

from carma_web.once import once
from carma_web.overview import Row
from carma_web.page import Page
from carmad.readable import clean
from carmad.states import FAILURES
from cli import client, parse
from cli.overview import ORDERS

if TYPE_CHECKING:
    from carmad.api.job import JobsOut

ROWS = 50  # of a page
MOST = 5_000  # rows; older ones are found by their days
STATES = {"": "any", "succeeded": "succeeded", ",".join(FAILURES): "any failure"}
STATES |= {state: state.replace("_", " ") for state in (*FAILURES, "cancelled")}
USUAL_ORDER = "ended"
ASKED = ("q", "state", "user", "since", "until", "sort")


class History(Page):
    """The page's parameters: `q` (words), `state`, `user`, `since` and `until` (days, both of which
    are in), `sort` (one of `ORDERS`, in reverse with a - before it), and `from` (the first row)."""

    template = "history.html.j2"
    title = "History"
    section = "/history"
    states = STATES

    def param(self, name: str) -> str:
        return self.request.query_params.get(name, "").strip()

    @property
    def first(self) -> int:
        given = self.param("from")
        return min(int(given), MOST) if given.isdecimal() and 0 < len(given) < 9 else 1

    @property
    def order(self) -> tuple[str, bool]:
        """By what, and whether in reverse."""
        given = self.param("sort")
        by = given.removeprefix("-")
        return (by, given.startswith("-")) if by in ORDERS else (USUAL_ORDER, False)

    @property
    def wrong(self) -> str:
        """What cannot be understood."""
        for name in ("since", "until"):
            try:
                if day := self.param(name):
                    date.fromisoformat(day)
            except ValueError:
                return f"{clean(day)!r:.40} is no day; one looks like {date.today()}"
        return ""

    def _instant(self, name: str, days: int) -> str | None:
        """The beginning of the day, or of a later one, in UTC."""
        day = self.param(name)
        if not day:
            return None
        return parse.since((date.fromisoformat(day) + timedelta(days)).isoformat())

    @once
    def jobs(self) -> JobsOut:
        by, reverse = self.order
        query: dict[str, Any] = {
            "text": self.param("q")[:256] or None,
            "states": self.param("state") if self.param("state") in STATES else None,
            "user": (self.param("user") or None) if self.is_admin else None,
            "since": self._instant("since", 0),
            "until": self._instant("until", 1),
            "order": by,
            "reverse": reverse,
            "limit": self.first - 1 + ROWS,  # a row may stand for any number of jobs
            "count": True,
            "fold": True,
        }
        answer: JobsOut = client.get("/v1/history", **query)
        return answer

    @property
    def rows(self) -> Sequence[Row]:
        return [Row(job) for job in self.jobs["jobs"][self.first - 1 :]]

    @property
    def counts(self) -> str:
        jobs, more = self.jobs["jobs"], self.jobs.get("more", 0)
        total = sum(Row(job).count for job in jobs) + more
        shown = f"; rows {self.first:,}–{len(jobs):,}" if more or self.first > 1 else ""
        return f"{total:,} {'job' if total == 1 else 'jobs'}{shown}"

    @property
    def others(self) -> Iterator[tuple[str, str]]:
        """Further pages: what they are, and their addresses."""
        if self.first > 1:
            yield "Previous", self.address(**{"from": max(1, self.first - ROWS)})
        if self.jobs.get("more") and len(self.rows) == ROWS:
            yield "Next", self.address(**{"from": self.first + ROWS})

    @property
    def ends_early(self) -> bool:
        """Whether there are more jobs than pages lead to."""
        return bool(self.jobs.get("more")) and len(self.rows) < ROWS

    def address(self, **changes: object) -> str:
        """This page with other parameters, from its first row on."""
        kept = {name: self.param(name) for name in ASKED}
        asked = {name: value for name, value in (kept | changes).items() if value}
        return f"{self.base}/history" + (f"?{urlencode(asked)}" if asked else "")

    def sorted_by(self, by: str) -> str:
        """Where this page is sorted by this column; in reverse order, if it is by now."""
        return self.address(sort=f"-{by}" if self.order == (by, False) else by)

    def way(self, by: str) -> str:
        """How the column is sorted now, as aria-sort has it."""
        mine, reverse = self.order
        return "none" if mine != by else "ascending" if reverse else "descending"


ROUTES = [Route("/history", History.show)]
