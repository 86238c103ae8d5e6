"""Writes responses, and tells routes who the caller is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any

from fastapi import Depends, Request
from pydantic_core import to_json
from starlette.responses import Response

from carmad import DISTRIBUTION
from carmad.api.render import Jobs
from carmad.api.responses import ErrorOut
from carmad.attempt.environment import log_paths
from carmad.core.messages import Event, Submitted
from carmad.core.scene import Scene
from carmad.core.types import Job
from carmad.http.listing import as_json
from carmad.http.peers import Credentials, Peer, Peers
from carmad.http.problems import Forbidden
from carmad.http.service import Service
from carmad.http.turns import Turn

try:
    VERSION = version(DISTRIBUTION)
except PackageNotFoundError:
    VERSION = "source"

PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorOut, "description": "Invalid request"},
    403: {"model": ErrorOut, "description": "Not permitted for this user"},
    404: {"model": ErrorOut, "description": "Not found"},
    408: {"model": ErrorOut, "description": "The request took too long to arrive"},
    409: {
        "model": ErrorOut,
        "description": "Not possible in the current state, or a limit is reached",
    },
    413: {"model": ErrorOut, "description": "Too large"},
    422: {"model": ErrorOut, "description": "Malformed request"},
    429: {
        "model": ErrorOut,
        "description": "Too many requests; nothing was done: try again later",
    },
    503: {
        "model": ErrorOut,
        "description": "Temporarily unavailable: the disk is full, or carmad is busy",
    },
}


def answer(value: object, status: int = 200) -> Response:
    """A JSON response, written without validation."""
    return Response(as_json(value), status, media_type="application/json")


def refusal(
    status: int, message: str, hint: str, code: str, headers: Mapping[str, str] | None = None
) -> Response:
    error: ErrorOut = {"error": message, "hint": hint, "code": code}
    body = to_json(error)
    return Response(body, status, headers, media_type="application/json")


@dataclass(frozen=True, slots=True)
class Call:
    """The caller of a request, and the service."""

    service: Service
    peer: Peer
    turn: Turn
    pid: int  # of the process that made the connection; it may have been reused since

    async def request(self, *events: Event) -> None:
        """As the service's, in turn with other users' requests, and as often as the caller may."""
        weight = sum(len(each.specs) if isinstance(each, Submitted) else 1 for each in events)
        await self.turn.afford(weight)
        await self.service.request(*events, user=self.turn.payer, weight=weight)

    def may_touch(self, job: Job) -> bool:
        return self.peer.admin or job.spec.owner == self.peer.owner

    def require_admin(self, what: str) -> None:
        if not self.peer.admin:
            group = self.service.settings.access.admin_group
            raise Forbidden(
                f"only administrators may {what}", f"Administrators are in the group {group}."
            )

    def renderer(self, scene: Scene) -> Jobs:
        return Jobs(scene, log_paths, self.peer.owner, self.peer.admin)


async def gone(request: Request) -> None:
    """Wait until the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def not_yours(job: Job) -> Forbidden:
    hint = "Ask them, or an administrator."
    return Forbidden(f"job {job.id} is {job.spec.user}'s", hint, code="not_yours")


async def _call(request: Request) -> Call:
    state = request.scope.get("state", {})
    credentials = state.get("credentials")
    if not isinstance(credentials, Credentials):
        raise Forbidden("the caller is unknown", "The API is served on a unix socket only.")
    peers: Peers = request.app.state.peers
    peer = await peers.peer(credentials)
    return Call(request.app.state.service, peer, state["turn"], credentials.pid)


Asked = Annotated[Call, Depends(_call)]
