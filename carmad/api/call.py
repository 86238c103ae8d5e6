"""The caller of a request, and the jobs that a request names.

The core has the live jobs, the store the rest. Tasks of an array that wait alike, or waited so
until they were cancelled, are found as one job unless they are named apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import with_config
from starlette.responses import Response

from carmad.api.job import Jobs
from carmad.api.service import Service
from carmad.api.wire import MAX_IDS, Selection, Time, as_json, parse_selection
from carmad.attempt.environment import log_paths
from carmad.core.gpus.sharing import label as label_of
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import Owner
from carmad.core.jobs.states import ENDED
from carmad.core.messages import Event, Submitted
from carmad.core.scene import Scene
from carmad.errors import CarmaError
from carmad.http.connections import Credentials, Peer, Peers
from carmad.http.problems import PROBLEMS, Forbidden, NotFound
from carmad.http.shares import JOBS, Turn
from carmad.options import MAX_TASKS
from carmad.store.sql import SqlStore
from carmad.threads import run_in_threadpool

MAX_IDS_EVER = 10**15

Label = Annotated[str, Path(json_schema_extra={"pattern": "^[0-9]{1,15}(_[0-9]{1,7})?$"})]
Select = Annotated[
    str | None,
    Query(max_length=8000, json_schema_extra={"pattern": r"^[0-9a-z_,%\[\]\- ]+$"}),
]
Limit = Annotated[int, Query(ge=1, le=MAX_TASKS)]
Before = Annotated[int | None, Query(ge=1, le=MAX_IDS_EVER)]
Word = Annotated[str | None, Query(max_length=256)]
Moment = Time | None


class Resource(APIRouter):
    """Its answers are written without validation, so their shapes are only documentation: pydantic
    reads them when that is asked for. It takes longer than the rest of a start."""

    def add_api_route(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        for response in (*self.responses.values(), *(options.get("responses") or {}).values()):
            if "model" in response:
                with_config(defer_build=True)(response["model"])
        super().add_api_route(path, endpoint, **options)


def resource(path: str = "", answers: type | None = None) -> Resource:
    """A router for a resource. `answers`: the shape of all its answers, if it is the same."""
    shape: dict[int | str, dict[str, Any]] = {200: {"model": answers}} if answers else {}
    responses = PROBLEMS | shape
    return Resource(prefix=f"/v1{path}", responses=responses, default_response_class=Response)


def answer(value: object, status: int = 200) -> Response:
    """A JSON response, written without validation."""
    return Response(as_json(value), status, media_type="application/json")


def not_yours(job: Job) -> Forbidden:
    hint = "Ask them, or an administrator."
    return Forbidden(f"job {label_of(job)} is {job.spec.user}'s", hint, code="not_yours")


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
        await self.turn.share.pay(weight / JOBS)
        await self.service.request(*events, user=self.turn.share.user, weight=weight)

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

    async def own_job(self, label: str) -> tuple[Job, Scene]:
        """A job that the caller may touch. Raises Forbidden, NotFound, also for several jobs."""
        tasks, scene = await self._find(label)
        if (number := sum(job.tasks for job in tasks)) > 1:
            hint = f"Name one of them, such as {label_of(tasks[0])}."
            raise NotFound(f"{label} is {number} jobs, not one", hint, code="array")
        return self._own(tasks)[0], scene

    async def own_tasks(self, label: str) -> tuple[list[Job], Scene]:
        """Likewise, but all tasks of an array if it is named as a whole."""
        tasks, scene = await self._find(label)
        return self._own(tasks), scene

    async def _find(self, label: str) -> tuple[list[Job], Scene]:
        scene = await self.service.scene()
        if tasks := await self.select(parse_selection(label), scene):
            return tasks, scene
        raise NotFound(f"there is no job {label}", "See `carma queue` and `carma history`.")

    def _own(self, tasks: list[Job]) -> list[Job]:
        if not self.may_touch(tasks[0]):
            raise not_yours(tasks[0])
        return tasks

    async def select(self, selection: Selection, scene: Scene) -> list[Job]:
        return await run_in_threadpool(resolve, self.service.store, self.peer, selection, scene)


async def _call(request: Request) -> Call:
    state = request.scope.get("state", {})
    credentials = state.get("credentials")
    if not isinstance(credentials, Credentials):
        raise Forbidden("the caller is unknown", "The API is served on a unix socket only.")
    peers: Peers = request.app.state.peers
    peer = await peers.peer(credentials)
    return Call(request.app.state.service, peer, state["turn"], credentials.pid)


Caller = Annotated[Call, Depends(_call)]


def resolve(store: SqlStore, peer: Peer, selection: Selection, scene: Scene) -> list[Job]:
    """The selected jobs, live and ended, in id order. `all` means the peer's own live jobs."""
    whole: dict[JobId, Job] = {}
    if selection.all:
        rows = scene.live.rows.values()
        whole |= {job.id: job for job in rows if job.spec.owner == peer.owner}
    if selection.last:
        for job in _newest(store, peer.owner):
            whole[job.id] = scene.live.row(job.id) or job
    found = {job.id: job for job in _in_scene(selection, scene)}
    found |= {job.id: job for job in _in_store(store, selection, scene) if job.id not in scene.live}
    parts = (each for job in found.values() if job.id not in whole for each in selection.parts(job))
    return sorted((*whole.values(), *parts), key=lambda job: job.id)


def _in_scene(selection: Selection, scene: Scene) -> Iterator[Job]:
    """Rows with selected live jobs. Either the queue or the selection may be long, hardly ever
    both."""
    live = scene.live
    spans = [ids for ids in selection.ranges if len(ids) < len(live.rows)]
    ids = {*selection.ids, *map(JobId, chain(*spans))}
    for id in ids:
        if row := live.row(id):
            yield row
    for array in ids.union(array for array, _ in selection.tasks):
        yield from scene.tasks(array)
    if len(spans) < len(selection.ranges):
        yield from live.rows.values()


def _newest(store: SqlStore, owner: Owner) -> list[Job]:
    """The job that a user submitted last; all its tasks if it is an array."""
    newest = store.history(user=owner, limit=1)
    array = newest[0].spec.array if newest else None
    return store.history(arrays=[array.array], limit=MAX_IDS) if array else newest


def _in_store(store: SqlStore, selection: Selection, scene: Scene) -> Iterator[Job]:
    """Rows with selected jobs that are not live, and perhaps some that are: reading them takes
    time."""
    newest = next((job.ids[-1] for job in store.history(limit=1)), 0) if selection.ranges else 0
    spans = [range(ids.start, min(ids.stop, newest + 1)) for ids in selection.ranges]
    wanted = len(selection.ids) + sum(map(len, spans))
    if wanted > MAX_IDS:
        raise CarmaError(f"{wanted} jobs are selected", f"Select at most {MAX_IDS} at a time.")
    ids = [id for id in selection.ids.union(map(JobId, chain(*spans))) if id not in scene.live]
    named = store.rows(ids) if ids else []
    arrays = set(ids).difference(job.id for job in named)
    index = None
    if not arrays and [len(indices) for _, indices in selection.tasks] == [1]:
        index = selection.tasks[0][1].start  # one task: of a long array, one row is read
    arrays |= {array for array, _ in selection.tasks}
    if not arrays:
        return iter(named)
    limit = MAX_IDS * len(arrays)
    return chain(named, store.history(arrays=arrays, states=ENDED, index=index, limit=limit))
