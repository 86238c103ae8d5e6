"""Finds jobs by label: the core has the live ones, the store the rest. Tasks of an array that wait
alike, or waited so until they were cancelled, are found as one job unless they are named apart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

from carmad.api.select import MAX_IDS, Selection, parse_label
from carmad.core.scene import Scene
from carmad.core.tasks import ids_of, part
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
    if live is not None and (index is None or (live := _task(live, id, index))):
        return live
    found = await run_in_threadpool(_find, call.service.store, scene, id, index)
    if found is None:
        raise NotFound(f"there is no job {label}", "See `carma queue` and `carma history`.")
    return found


def _find(store: SqlStore, scene: Scene, id: JobId, index: int | None) -> Job | None:
    if index is None:
        return store.job(id)
    known = chain(scene.tasks(id), store.history(array=id, index=index, limit=1))
    return next((task for job in known if (task := _task(job, id, index))), None)


def _task(job: Job, array: JobId, index: int) -> Job | None:
    its = job.spec.array
    if its is None or its.array != array:
        return None
    ids = ids_of(job, range(index, index + 1))
    return part(job, ids) if ids else None


async def select(call: Call, selection: Selection, scene: Scene) -> list[Job]:
    return await run_in_threadpool(selected, call.service.store, call.peer, selection, scene)


def selected(store: SqlStore, peer: Peer, selection: Selection, scene: Scene) -> list[Job]:
    """The selected jobs, live and ended, in id order. `all` means the peer's own live jobs."""
    whole: dict[JobId, Job] = {}
    if selection.all:
        rows = scene.live.rows.values()
        whole |= {job.id: job for job in rows if job.spec.owner == peer.owner}
    if selection.last:
        for job in _newest(store, peer.user):
            whole[job.id] = scene.live.row(job.id) or job
    found = {job.id: job for job in _live(selection, scene)}
    found |= {job.id: job for job in _stored(store, selection, scene) if job.id not in scene.live}
    parts = (each for job in found.values() if job.id not in whole for each in selection.parts(job))
    return sorted((*whole.values(), *parts), key=lambda job: job.id)


def _live(selection: Selection, scene: Scene) -> Iterator[Job]:
    """Rows with selected live jobs. Either the queue or the selection may be long, hardly ever
    both."""
    live = scene.live
    spans = [ids for ids in selection.ranges if len(ids) < len(live.rows)]
    for id in (*selection.ids, *map(JobId, chain(*spans))):
        if row := live.row(id):
            yield row
    for array in {*selection.ids, *(array for array, _ in selection.tasks)}:
        yield from scene.tasks(array)
    if len(spans) < len(selection.ranges):
        yield from live.rows.values()


def _newest(store: SqlStore, user: str) -> list[Job]:
    """The job that a user submitted last; all its tasks if it is an array."""
    newest = store.history(user=user, limit=1)
    array = newest[0].spec.array if newest else None
    return store.history(array=array.array, limit=MAX_IDS) if array else newest


def _stored(store: SqlStore, selection: Selection, scene: Scene) -> Iterator[Job]:
    """Rows with selected jobs that are not live, and perhaps some that are: reading them takes
    time."""
    newest = next((job.ids[-1] for job in store.history(limit=1)), 0) if selection.ranges else 0
    spans = [range(ids.start, min(ids.stop, newest + 1)) for ids in selection.ranges]
    wanted = len(selection.ids) + sum(map(len, spans))
    if wanted > MAX_IDS:
        raise CarmaError(f"{wanted} jobs are selected", f"Select at most {MAX_IDS} at a time.")
    live = scene.live
    named = store.rows([JobId(id) for id in (*selection.ids, *chain(*spans)) if id not in live])
    arrays = {array for array, _ in selection.tasks}
    heads = (*named, *(live[id] for id in selection.ids if id in live))
    arrays |= {job.id for job in heads if _heads_an_array(job) and job.id in selection.ids}
    tasks = (store.history(array=array, states=ENDED, limit=MAX_IDS) for array in arrays)
    return chain(named, *tasks)


def _heads_an_array(job: Job) -> bool:
    return job.spec.array is not None and job.spec.array.array == job.id
