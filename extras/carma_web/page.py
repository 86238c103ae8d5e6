"""What a page is: a template, whose blocks are the parts that are kept up to date, and an object
that its template asks for what it shows; and the words of `cli.render` in paragraphs, lists and
tables."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import quote, unquote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from carma_web.forms import in_fields
from carma_web.hues import css
from carma_web.once import once
from carmad.html import environment
from carmad.states import CODES, FAILURES
from cli import client
from cli.overview import kernelless
from cli.text import Table, clock, command, fraction, local_time, memory, parts, span

if TYPE_CHECKING:
    from carmad.api.gpus import GpuOut
    from carmad.api.job import JobOut
    from carmad.api.server import StatusOut
    from cli.text import Block

Span = tuple[str, str]  # a text, and its style
OF_ALL = ("head", "main")  # blocks of all pages, which are no parts
STATE_LOOK = {"R": "good", "CF": "good", "CD": "good", "RQ": "warn", "H": "warn", "CA": "warn"}
STATE_LOOK |= dict.fromkeys((CODES[state] for state in FAILURES), "bad")
GPU_LOOK = {"ok": "good", "settling": "", "drained": "warn", "reserved": "warn"}


def state_look(job: JobOut) -> str:
    """The kind of its state's badge."""
    return STATE_LOOK.get(job["code"], "")


def gpu_look(gpu: GpuOut) -> str:
    return GPU_LOOK.get(gpu["state"], "bad")


FILTERS = {
    "clock": clock,
    "command": command,
    "fraction": fraction,
    "gpu_look": gpu_look,
    "in_fields": in_fields,
    "kernelless": kernelless,
    "local_time": local_time,
    "memory": memory,
    "span": span,
    "state_look": state_look,
}


class Page:
    """One request for a page. What its template shows are attributes; those that ask the daemon do
    it `once`, so that a part that is rendered alone asks only for what it shows."""

    template: ClassVar[str]
    title: ClassVar[str] = "CARMA"
    section: ClassVar[str] = ""  # the link in the head of the page that leads here

    def __init__(self, request: Request) -> None:
        self.request = request
        self.base: str = request.app.state.base
        self.read_only: bool = request.app.state.read_only

    @classmethod
    def show(cls, request: Request) -> Response:
        """The endpoint. Not a coroutine: it may block."""
        return cls(request).response()

    @once
    def status(self) -> StatusOut:
        found: StatusOut = client.get("/v1/status")
        return found

    @property
    def is_admin(self) -> bool:
        return self.status["me"]["admin"]

    @property
    def new_release(self) -> str:
        """carmad's release, if it is another than when these pages were first looked at."""
        state, release = self.request.app.state, self.status["server"]["version"]
        state.release = state.release or release
        return release if release != state.release else ""

    @property
    def heading(self) -> str:
        return self.title

    away = ""  # since when carmad does not answer, in words

    def response(self) -> Response:
        """The page, or only the part of it that is asked for."""
        part = self.request.query_params.get("part")
        if part is None:
            found = self.whole()
            self.request.app.state.answered = datetime.now()
            return found
        template = templates().get_template(self.template)
        if part not in template.blocks or part in OF_ALL:
            raise HTTPException(404, f"this page has no part {part!r:.80}")
        block = template.blocks[part](template.new_context({"page": self, "told": ""}))
        self.request.app.state.answered = datetime.now()
        return unless_known(self.request, "".join(block), "text/html")

    def whole(self, status: int = 200) -> Response:
        told = unquote(self.request.cookies.get(message_cookie(self.base), ""))
        html = templates().get_template(self.template).render(page=self, told=told)
        page = HTMLResponse(html, status)
        if told:
            page.delete_cookie(message_cookie(self.base), path=f"{self.base}/")
        return page


def unless_known(request: Request, text: str, media_type: str) -> Response:
    """The text, unless the browser has exactly that."""
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'
    headers = {"ETag": tag}
    if tag in request.headers.get("if-none-match", ""):  # weak, if it was compressed
        return Response(status_code=304, headers=headers)
    return Response(text, headers=headers, media_type=media_type)


def message_cookie(base: str) -> str:
    """It brings what became of a form to the next page. Servers of others at this host's other
    ports could set it, too, but do not know what it is called."""
    return f"carma-told-{base.removeprefix('/')}"


def go_on(request: Request, path: str, message: str) -> Response:
    """Go on to the page at `path`, below a line that says what was done."""
    base: str = request.app.state.base
    to = RedirectResponse(f"{base}{path}", 303)
    line = quote(message[:300])[:2000]  # what a cookie can carry
    to.set_cookie(
        message_cookie(base), line, max_age=30, path=f"{base}/", httponly=True, samesite="lax"
    )
    return to


def templates() -> Any:
    found = environment("carma_web")
    found.filters |= FILTERS
    return found


def warm_up() -> None:
    """Compile what the first page is made of, before it is asked for."""
    for name in ("base.html.j2", "overview.html.j2"):
        templates().get_template(name)


AWAY = "carmad does not answer"


def problem(request: Request, status: int, message: str, hint: str = "") -> Response:
    page = Problem(request)
    again = status == 503 and request.method == "GET"
    page.facts = {"message": message, "hint": hint, "again": again}
    if again:
        last: datetime | None = request.app.state.answered
        page.away = f"carmad has not answered since {last:%H:%M}" if last else AWAY
    return page.whole(status)


class Problem(Page):
    """Instead of a page that cannot be shown."""

    template = "problem.html.j2"
    title = "It did not work"
    is_admin = False  # nobody is asked: carmad may be the problem
    new_release = ""
    facts: Mapping[str, Any]


BULLET = "  · "


@dataclass(slots=True)
class Piece:
    """`kind`: heading, text, list or table."""

    kind: str
    lines: list[Sequence[Span]] = field(default_factory=list)
    rows: list[list[Sequence[Span]]] = field(default_factory=list)


def pieces(picture: Iterable[Block]) -> list[Piece]:
    found: list[Piece] = []
    for block in picture:
        if isinstance(block, Table):
            rows: list[list[Sequence[Span]]] = [[*map(parts, row)] for row in block.rows]
            found.append(Piece("table", rows=rows))
        elif isinstance(block, str) and block and (spans := parts(block)):
            kind = _kind(spans)
            if not (kind == "list" and found and found[-1].kind == "list"):
                found.append(Piece(kind))
            text, style = spans[0]
            found[-1].lines.append([(text.removeprefix(BULLET), style), *spans[1:]])
    return found


def _kind(spans: Sequence[Span]) -> str:
    if spans[0][0].startswith(BULLET):
        return "list"
    return "heading" if [style for _, style in spans] == ["bold"] else "text"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of a whole, drawn from `begin` on; both in per cent. `colour`: in CSS."""

    name: str
    mib: int
    begin: float
    width: float
    colour: str


def shares(
    parts: Mapping[str, int], total: int = 0, colours: Mapping[str, str] | None = None
) -> list[Share]:
    """`total`: the whole, if there is more to it than its parts."""
    total, begin, found = total or sum(parts.values()), 0.0, []
    for at, (name, mib) in enumerate(parts.items()):
        if mib:
            width, colour = 100 * mib / total, colours[name] if colours else css(at)
            found.append(Share(name, mib, round(begin, 2), round(width, 2), colour))
            begin += width
    return found
