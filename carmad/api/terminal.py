"""Users' own processes: those that run a job, that join one, and that become one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated

from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from carmad.api.call import Call, Caller, Label, answer, not_yours, resource
from carmad.api.job import JobOut
from carmad.api.refusals import may_submit
from carmad.api.requests import Body, Name
from carmad.api.service import Terminals
from carmad.api.wire import SCHEMA, pick
from carmad.attempt.callers import Process, Taken, own_process, title_of
from carmad.attempt.proc import with_descendants
from carmad.core.gpus.gpu import ProcessUse
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import GpuId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import Adopted
from carmad.core.scene import Scene
from carmad.http.problems import Conflict, Unavailable
from carmad.options import PLAIN
from carmad.readable import job_name
from carmad.threads import run_in_threadpool

router = resource()

BEGINS_WITHIN_S = 12.0  # a little longer than the shepherd waits for a supervisor
JOINS_WITHIN_S = 2.0
LOOK_S = 0.02
MOST_WORDS, MOST_LETTERS = 100, 4096  # of a command that is only shown


class TakenOut(TypedDict):
    """What a process needs to run a job, or to join it."""

    schema: int
    argv: list[str]
    cwd: str
    env: dict[str, str | None]  # null: to be unset


class AdoptIn(Body):
    """A process of the caller's on a GPU, and options of the job that it becomes."""

    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    name: Name | None = None
    memory_mib: Annotated[int, Field(**PLAIN["memory_mib"].limits)] | None = None
    time_limit_s: Annotated[float, Field(**PLAIN["time_limit_s"].limits)] | None = None


@router.post("/jobs/{label}/take", responses={200: {"model": TakenOut}})
async def take(call: Caller, label: Label) -> Response:
    """Let the process that makes this connection run a job that was submitted as `interactive`, on
    the GPUs that it has got. When this answers, the process is followed: it sets `env`, then
    executes `argv`."""
    job, process, terminals = await _own_process(call, label)
    taken = await asyncio.wrap_future(terminals.take(job, process))
    await _until(lambda: terminals.has_begun(taken.job), BEGINS_WITHIN_S)
    return _process_out(taken)


@router.post("/jobs/{label}/join", responses={200: {"model": TakenOut}})
async def join(call: Caller, label: Label) -> Response:
    """Let the process that makes this connection join a running job of its user's: it is on the
    job's GPUs, and ends with it. When this answers, the process is followed; `env` is complete."""
    job, process, terminals = await _own_process(call, label)
    if not job.holds_gpus or job.state is JobState.STOPPING:
        raise Conflict(f"job {label} is not running", f"See carma why {label}.")
    if job.spec.container is not None:
        raise Conflict(
            f"job {label} runs in a container, which CARMA cannot enter",
            "`podman exec` can; `podman ps` names the container.",
        )
    taken = await asyncio.wrap_future(terminals.join(job, process))
    await _until(lambda: terminals.has_joined(job, process), JOINS_WITHIN_S)
    return _process_out(taken)


async def _own_process(call: Call, label: str) -> tuple[Job, Process, Terminals]:
    """The caller's job, and the process that makes this connection."""
    job, _ = await call.own_job(label)
    if job.spec.owner != call.peer.owner:  # an administrator's process cannot be another user's job
        raise not_yours(job)
    assert call.service.terminals is not None
    process = await run_in_threadpool(own_process, call.pid, call.peer.uid)
    return job, process, call.service.terminals


async def _until(followed: Callable[[], bool], within_s: float) -> None:
    waited_s = 0.0
    while not followed():
        if waited_s > within_s:
            raise Unavailable("the job's supervisor did not answer in time", "Try again.")
        await asyncio.sleep(LOOK_S)
        waited_s += LOOK_S


def _process_out(taken: Taken) -> Response:
    return answer(pick(TakenOut, taken, schema=SCHEMA, cwd=taken.job.spec.cwd))


@router.post("/adopt", status_code=201, responses={201: {"model": JobOut}})
async def adopt(call: Caller, body: AdoptIn) -> Response:
    """Make a job of a process of the caller's that runs on a GPU. Its children belong to it."""
    service, peer = call.service, call.peer
    may_submit(call)
    process, tree, argv, cwd = await run_in_threadpool(_inspect, body.pid, peer.uid)
    gpus, uses = _where(tree, await service.scene())
    spec = JobSpec(
        argv=argv,
        user=peer.user,
        uid=peer.uid,
        gid=peer.gid,
        cwd=cwd,
        name=body.name or job_name(argv),
        requeue=False,
        memory_mib=body.memory_mib,
        time_limit_s=body.time_limit_s,
        gpus=len(gpus),
        interactive=True,
        process=(process.pid, process.start_ticks),
    )
    mode = Mode.MPS if any(use.mps_uid is not None for use in uses) else Mode.STREAMS
    id = service.inbox.next_ids(1)
    await call.request(Adopted(service.now(), id, spec, gpus, mode))
    if await service.ask(lambda core: id not in core.jobs and id not in core.outcomes):
        hint = "Wait for that job to end."
        raise Conflict(f"process {body.pid} is on a GPU that a job has to itself", hint)
    job, scene = await call.own_job(str(id))
    return answer(call.renderer(scene)(job), 201)


def _inspect(pid: int, uid: int) -> tuple[Process, set[int], tuple[str, ...], str]:
    """The process, the pids of it and all below it, its command, and its directory."""
    process = own_process(pid, uid)
    tree = set(with_descendants({process.pid: process.start_ticks}))
    argv, cwd = title_of(pid)
    own_process(pid, uid)  # still: what was read is of this process
    words = [_text(word) for word in argv[:MOST_WORDS]] or [f"process {pid}"]
    return process, tree, tuple(words), _text(cwd) or "/"


def _text(word: str) -> str:
    return word[:MOST_LETTERS].encode(errors="replace").decode()


def _where(tree: set[int], scene: Scene) -> tuple[tuple[GpuId, ...], Sequence[ProcessUse]]:
    """The GPUs that these processes are on, by the last reading, and their use of them."""
    seen = [
        (view.id, use)
        for node in scene.view.nodes
        for view in node.gpus
        for use in (view.sample.processes if view.sample else ())
        if use.pid in tree
    ]
    if not seen:
        hint = "`carma gpus` shows the processes on GPUs; try again in a few seconds."
        raise Conflict("that process, and what it started, is on no GPU", hint)
    if owner := next((use.job for _, use in seen if use.job is not None), None):
        name = label(scene.live[owner]) if owner in scene.live else owner
        raise Conflict(f"that process belongs to job {name}", f"See carma show {name}.")
    return tuple(dict.fromkeys(gpu for gpu, _ in seen)), [use for _, use in seen]
