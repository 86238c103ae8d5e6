"""The first page: the GPUs, what ran on them in the last hours, and who waits for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from carmad.readable import clean
from cli import client, dashboard
from cli.problems import Refused
from web import timeline
from web.line import Line
from web.page import Page

if TYPE_CHECKING:
    from carmad.api.gpus import GpuOut, GpusOut

MOST_DIGITS = 16  # of a time in seconds
KEPT = ("hours", "user", "q", "from")  # parameters that links on the page keep


class Overview(Page):
    template = "overview.html.j2"
    title = "GPUs"
    section = "/"
    charts = timeline

    @cached_property
    def gpus(self) -> GpusOut:
        found: GpusOut = client.get("/v1/gpus")
        return found

    @property
    def limit(self) -> float:
        """Of SM activity."""
        found: float = self.gpus["thresholds"]["risk"]["sm_active"]
        return found

    @cached_property
    def line(self) -> Line:
        return Line(self.request.query_params, lambda: self.status)

    @property
    def headline(self) -> Sequence[tuple[str, str]]:
        """Facts about the server, each with its style."""
        return dashboard.headline(self.status)

    @property
    def hours(self) -> int:
        return _hours(self.request)

    def name(self, gpu: GpuOut) -> str:
        return clean(gpu["name"]).removeprefix("NVIDIA ")

    def address(self, **changes: object) -> str:
        """This page with other parameters."""
        asked = self.request.query_params
        kept = {name: asked[name] for name in KEPT if asked.get(name)}
        return f"{self.base}/?{urlencode(kept | changes)}"


def charts(request: Request) -> Response:
    """All charts of the page; with `since`, what is new."""
    hours, since = _hours(request), request.query_params.get("since", "0")
    if not (since.isdecimal() and len(since) < MOST_DIGITS):
        raise HTTPException(400, f"since={since!r:.40} is no number of seconds")
    query = timeline.query(hours, int(since), time.time())
    try:
        answer = client.get(client.with_query("/v1/timeline", query))
    except Refused as refused:
        return JSONResponse({"error": f"carmad tells no timeline: {refused.message}"}, 404)
    return JSONResponse({"charts": timeline.charts(answer, hours)})


def _hours(request: Request) -> int:
    asked = request.query_params.get("hours", "")
    return next((hours for hours in timeline.HOURS if str(hours) == asked), timeline.USUAL_HOURS)


ROUTES = [Route("/", Overview.show), Route("/charts.json", charts)]
