"""Who may see the pages: the owner of the printed link, and no other user of the same server."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from urllib.parse import quote, urlencode, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "carma"
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
        path: str = request.scope["path"]  # that of request.url is what the Host header makes of it
        inside = path.startswith(f"{self.base}/")
        given = request.query_params.get("token", "")
        if (inside or path == "/") and self._is_token(given):
            return self._welcome(request, path if inside else f"{self.base}/")
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
