"""Finds jobs by label: the core has the live ones, the store the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from carmad.api.select import MAX_IDS, Selection, parse_label
from carmad.core.scene import Scene
from carmad.core.types import ENDED, Job, JobId
from carmad.engine.threads import run_in_threadpool
from carmad.errors import CarmaError
from carmad.http.answers import Call
from carmad.http.peers import Peer
from carmad.http.problems import NotFound
from carmad.store.sql import SqlStore


async def find(call: Call, label: str, scene: Scene) -> Job:
    """The job `42`, or the task `42_3`. Raises NotFound."""
    id, index = parse_label(label)
    live = scene.live.get(id)
    if live is not None and _is(live, id, index):
        return live
    found = await run_in_threadpool(_find, call.service.store, scene, id, index)
    if found is None:
        raise NotFound(f"there is no job {label}", "See `carma queue` and `carma history`.")
    return found


def _find(store: SqlStore, scene: Scene, id: JobId, index: int | None) -> Job | None:
    if index is None:
        return store.job(id)
    live = (job for job in scene.tasks(id) if _is(job, id, index))
    return next(live, None) or next(iter(store.history(array=id, index=index, limit=1)), None)


def _is(job: Job, id: JobId, index: int | None) -> bool:
    if index is None:
        return job.id == id
    array = job.spec.array
    return array is not None and (array.array, array.index) == (id, index)


async def select(call: Call, selection: Selection, scene: Scene) -> list[Job]:
    return await run_in_threadpool(selected, call.service.store, call.peer, selection, scene)


def selected(store: SqlStore, peer: Peer, selection: Selection, scene: Scene) -> list[Job]:
    """The selected jobs, live and ended, in id order. `all` means the peer's own live jobs."""
    found = {job.id: job for job in _live(selection, scene)}
    if selection.all:
        found |= {job.id: job for job in scene.live.values() if job.spec.owner == peer.owner}
    if selection.last:
        for job in _newest(store, peer.user):
            found[job.id] = scene.live.get(job.id, job)
    for job in _stored(store, selection, scene):
        found.setdefault(job.id, job)
    return sorted(found.values(), key=lambda job: job.id)


def _live(selection: Selection, scene: Scene) -> Iterator[Job]:
    """The selected live jobs. Either the queue or the selection may be long, hardly ever both."""
    spans = [ids for ids in selection.ranges if len(ids) < len(scene.live)]
    for id in (*selection.ids, *map(JobId, chain(*spans))):
        if job := scene.live.get(id):
            yield job
    for id in selection.ids:
        yield from scene.tasks(id)
    for array in {array for array, _ in selection.tasks}:
        yield from filter(selection.has, scene.tasks(array))
    if len(spans) < len(selection.ranges):
        yield from filter(selection.has, scene.live.values())


def _newest(store: SqlStore, user: str) -> list[Job]:
    """The job that a user submitted last; all its tasks if it is an array."""
    newest = store.history(user=user, limit=1)
    array = newest[0].spec.array if newest else None
    return store.history(array=array.array, limit=MAX_IDS) if array else newest


def _stored(store: SqlStore, selection: Selection, scene: Scene) -> Iterable[Job]:
    """The selected jobs that are not live, and perhaps some that are: reading them takes time."""
    newest = next((job.id for job in store.history(limit=1)), 0) if selection.ranges else 0
    spans = [range(ids.start, min(ids.stop, newest + 1)) for ids in selection.ranges]
    wanted = len(selection.ids) + sum(map(len, spans))
    if wanted > MAX_IDS:
        raise CarmaError(f"{wanted} jobs are selected", f"Select at most {MAX_IDS} at a time.")
    live = scene.live
    named = store.jobs([JobId(id) for id in (*selection.ids, *chain(*spans)) if id not in live])
    arrays = {array for array, _ in selection.tasks}
    heads = (*named, *(live[id] for id in selection.ids if id in live))
    arrays |= {job.id for job in heads if _heads_an_array(job) and job.id in selection.ids}
    tasks = (store.history(array=array, states=ENDED, limit=MAX_IDS) for array in arrays)
    return (job for job in chain(named, *tasks) if selection.has(job))


def _heads_an_array(job: Job) -> bool:
    return job.spec.array is not None and job.spec.array.array == job.id
