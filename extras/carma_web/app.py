"""The pages by path, who may see them, and what goes wrong with them; runs them until a signal ends
it."""

from __future__ import annotations

import hashlib
import hmac
import logging
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlencode, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import carmad.html
from carma_web import admin, gpu, history, job, overview, share, submission, wall
from carma_web.hues import Hues
from carma_web.live import Live
from carma_web.page import problem, unless_known
from carmad.errors import CarmaError
from cli.problems import Problem

COOKIE = "carma"
LINKS = ("/", "/wall")  # with the token behind them, they lead to the pages
LACKS_TOKEN = (
    "This page is its owner's. Open the link that `carma web` printed: it ends in ?token=…\n"
)
HEADERS = {  # unless a page has its own
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


class Gate:
    """The pages are below a path that follows from the token. Browsers send a cookie to every port
    of a host, and thus to other users' servers, but not to other paths."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token
        self.base = base_of(token)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        turned_away = self._refusal(Request(scope))

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                kept = "private, no-cache" if "ETag" in headers else "no-store"
                headers.setdefault("Cache-Control", kept)
            await send(message)

        await (turned_away or self._app)(scope, receive, with_headers)
        return None

    def _refusal(self, request: Request) -> Response | None:
        path: str = request.scope["path"]  # request.url.path depends on the Host header
        inside = path.startswith(f"{self.base}/")
        given = request.query_params.get("token", "")
        if (inside or path in LINKS) and self._is_token(given):
            return self._welcome(request, path if inside else f"{self.base}{path}")
        if not inside or not any(map(self._is_token, _cookies(request))):
            return PlainTextResponse(LACKS_TOKEN, 401)
        if request.method not in ("GET", "HEAD") and not _is_from_here(request):
            return PlainTextResponse("This request comes from another site's page.\n", 403)
        return None

    def _welcome(self, request: Request, path: str) -> Response:
        """The same page without the token in its address, which others may see or be sent."""
        query = urlencode([p for p in request.query_params.multi_items() if p[0] != "token"])
        to = RedirectResponse(quote(path) + (f"?{query}" if query else ""), 303)
        to.set_cookie(COOKIE, self._token, path=f"{self.base}/", httponly=True, samesite="lax")
        return to

    def _is_token(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self._token.encode())


def base_of(token: str) -> str:
    """The path below which the pages are; it tells nothing about the token."""
    return f"/{hashlib.sha256(token.encode()).hexdigest()[:12]}"


def _cookies(request: Request) -> Iterator[str]:
    """All that have our name: a server at another port of this host could have set one, too."""
    for header in request.headers.getlist("cookie"):
        for one in header.split(";"):
            name, _, value = one.strip().partition("=")
            if name == COOKIE:
                yield value


def _is_from_here(request: Request) -> bool:
    """Whether a page of ours sent it. A proxy may change Host, but not what the browser says."""
    said = request.headers.get("sec-fetch-site")
    if said is not None:
        return said == "same-origin"
    origin = request.headers.get("origin", "")
    return bool(origin) and urlsplit(origin).netloc == request.headers.get("host")


STATUS = {"not_found": 404, "forbidden": 403, "not_yours": 403}
STATUS |= dict.fromkeys(("unreachable", "unavailable", "unknown"), 503)
STATIC = Path(__file__).parent / "static"
STYLES = ("web.css", "charts.css", "overview.css")  # one file for all pages
PAGES = (
    *(overview.ROUTES, gpu.ROUTES, history.ROUTES, job.ROUTES, submission.ROUTES),
    *(share.ROUTES, admin.ROUTES, wall.ROUTES),
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
    app.state.hues = Hues()
    app.state.release = ""  # of carmad, when first asked
    app.state.answered = None  # when carmad last did
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


def serve(token: str, read_only: bool, listening: socket.socket) -> None:
    live = Live()
    config = uvicorn.Config(
        build(token, read_only, live),
        log_level="error",  # whoever connects could fill the terminal with warnings
        access_log=False,
        lifespan="off",
        http="h11",  # which limits headers
        ws="none",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    # Once its streams are told, uvicorn raises the signal again. Python's own handler would then
    # wait for every thread, and so for a daemon that never answers one of them.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Server(config, live).run([listening])


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.end()  # a stream that is not cut is not taken for a server that is gone
        # Cutting off a slow reader is no error.
        logging.getLogger("uvicorn.error").disabled = True
        await super().shutdown(sockets)
