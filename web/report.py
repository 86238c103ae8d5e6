"""What the last days, a week or a month were used for: the same as `carma report`."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING

from starlette.routing import Route

from carmad.report.period import PERIODS, last
from carmad.report.wording import Section, sections, title
from cli import client
from web.page import Page

if TYPE_CHECKING:
    from carmad.api.report import ReportOut

DAYS = "7 days"


class Report(Page):
    template = "report.html.j2"
    title = "Report"
    section = "/report"
    periods = (DAYS, *PERIODS)

    @property
    def period(self) -> str:
        asked = self.request.query_params.get("of", "")
        return asked if asked in self.periods else DAYS

    @property
    def command(self) -> str:
        return "carma report " + ("--since 7d" if self.period == DAYS else self.period)

    @cached_property
    def answer(self) -> ReportOut:
        now = datetime.now().astimezone()
        since, until = now - timedelta(days=7), now
        if self.period != DAYS:
            since, until = last(self.period, now.date())
        found: ReportOut = client.get(
            "/v1/report", since=since.isoformat(), until=until.isoformat()
        )
        return found

    @property
    def heading(self) -> str:
        return title(self.answer)

    @property
    def sections(self) -> list[Section]:
        return sections(self.answer)


ROUTES = [Route("/report", Report.show)]
