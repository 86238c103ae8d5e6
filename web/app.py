"""The pages by path, and what goes wrong with them."""

from __future__ import annotations

from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

import carmad.html
from carmad.errors import CarmaError
from cli.problems import Problem
from web import admin, job, overview, report, share, submission, what_if
from web.gate import Gate, base_of
from web.live import Live
from web.page import problem, unless_known

STATUS = {"not_found": 404, "forbidden": 403, "not_yours": 403, "unreachable": 503, "unknown": 503}
STATIC = Path(__file__).parent / "static"
STYLES = ("web.css", "charts.css", "overview.css")  # one file for all pages
PAGES: tuple[list[Route], ...] = (
    *(overview.ROUTES, job.ROUTES, submission.ROUTES),
    *(share.ROUTES, report.ROUTES, admin.ROUTES, what_if.ROUTES),
)


def build(token: str, read_only: bool, live: Live | None = None) -> ASGIApp:
    """`read_only`: the pages show, and change nothing."""
    routes: list[BaseRoute] = [route for routes in PAGES for route in routes]
    if read_only:
        routes = [r for r in routes if isinstance(r, Route) and r.methods == {"GET", "HEAD"}]
    routes += [
        Route("/live", (live or Live()).stream),
        Route("/look.css", look),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    app = Starlette(
        routes=[Mount(base_of(token), routes=routes)],
        middleware=[Middleware(GZipMiddleware)],
        exception_handlers={CarmaError: failure, HTTPException: not_found},
    )
    app.state.base = base_of(token)
    app.state.read_only = read_only
    app.state.release = ""  # of carmad, when first asked
    return Gate(app, token)


def look(request: Request) -> Response:
    """The style sheets of all pages as one: nothing is painted before they are there."""
    ours = ((STATIC / name).read_text(encoding="utf-8") for name in STYLES)
    return unless_known(request, "\n".join([carmad.html.style(), *ours]), "text/css")


def failure(request: Request, error: Exception) -> Response:
    """The daemon refused, or does not answer."""
    assert isinstance(error, CarmaError)
    status = STATUS.get(error.code, 400) if isinstance(error, Problem) else 503
    return problem(request, status, str(error), error.hint)


def not_found(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return problem(request, error.status_code, error.detail)
