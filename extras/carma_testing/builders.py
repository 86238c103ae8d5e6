"""Builders of jobs, GPUs, views and servers, for the checks and for tests of plugins."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Literal

from carmad.config import Settings
from carmad.core.gpus.gpu import Gpu, GpuSample, Recent, Score
from carmad.core.gpus.gpuview import GpuView, NodeView, by_node, with_server
from carmad.core.gpus.readings import memory_of
from carmad.core.jobs.attempt import Attempt, Cause, EndedAttempt, Exit, GpuId, JobId, Suspension
from carmad.core.jobs.control import refusal
from carmad.core.jobs.findings import Estimate, Indicator, Prediction, Profile
from carmad.core.jobs.history import History
from carmad.core.jobs.job import Job, Retry
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.jobs.states import (
    ENDED,
    NEW,
    Active,
    JobState,
    Over,
    Paused,
    Status,
    Stopping,
    Waiting,
)
from carmad.core.placing.decision import Reason
from carmad.core.placing.view import View
from carmad.core.ports import Run, Trial
from carmad.learning.models import Model

LONG_AGO = -1.0
_OF_ATTEMPT = {each.name for each in fields(Attempt)} - {"number", "served_s"}
_OF_STATE = ("state", "suspension", "stop", "exit", "ended_at")
_CAUSES = {
    JobState.SUCCEEDED: Cause.SUCCESS,
    JobState.FAILED: Cause.FAILURE,
    JobState.CANCELLED: Cause.CANCELLED,
    JobState.TIMED_OUT: Cause.TIME_LIMIT,
    JobState.OUT_OF_MEMORY: Cause.GPU_OOM,
}


def a_spec(**changes: object) -> JobSpec:
    base = JobSpec(
        argv=("python", "train.py"), user="ada", uid=1000, gid=1000, cwd="/home/ada", name="train"
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def a_job(id: int = 1, **changes: object) -> Job:
    """A job, queued unless `state` is given. Takes the fields that `changed` does, and
    `gpus_wanted`: its spec's `gpus`."""
    wanted = changes.pop("gpus_wanted", 1)
    spec = changes.pop("spec", None) or a_spec(gpus=wanted)
    new = Job(JobId(id), spec, Waiting(JobState.QUEUED), float(id))  # type: ignore[arg-type]
    return changed(new, **changes)


def changed(job: Job, **changes: Any) -> Job:
    """`job` with other fields: its own, those of its state (`state`, `exit`, `ended_at`,
    `suspension`, `stop`), of its current attempt (`gpus`, `started_at`, …, `attempt` for its
    number), and the `failures` and `served_s` of earlier ones. A job that is given an attempt
    runs, unless `state` is given, too. What its state needs besides is made up."""
    numbered = changes.pop("attempt", None)
    earlier = _earlier(job, changes.pop("failures", None), changes.get("served_s"))
    served_s = changes.pop("served_s", job.served_s)
    its = {name: changes.pop(name) for name in _OF_ATTEMPT & changes.keys()}
    if its and job.state in NEW:
        changes.setdefault("state", JobState.RUNNING)
    given = {name: changes.pop(name, getattr(job, name)) for name in _OF_STATE}
    new = replace(job, earlier=earlier, **changes)
    last = earlier[-1].number if earlier else 0
    number = numbered or (job.current.number or last + 1)
    before = {name: getattr(job.current, name) for name in _OF_ATTEMPT}
    attempt = Attempt(number=number, served_s=served_s, **before | its)
    status = _status(given, attempt, bool(its or job.status.attempt), job.submitted_at)
    if isinstance(status, Waiting) and job.status.attempt:
        exit, ended_at = given["exit"] or Exit(Cause.LOST), given["ended_at"] or job.submitted_at
        earlier = (*earlier, attempt.ended(exit, ended_at, given["stop"]))
    elif isinstance(status, Waiting) and (served_s or (numbered or 0) > last):
        # What earlier ones ran for is told by the one after them.
        back = Attempt(number, (), served_s=served_s)
        earlier = (*earlier, back.ended(Exit(Cause.PROFILED), LONG_AGO, Cause.PROFILED))
    return replace(new, status=status, earlier=earlier)


def _earlier(
    job: Job, failures: Sequence[Exit] | None, served_s: float | None
) -> tuple[EndedAttempt, ...]:
    if failures is None and served_s is None:
        return job.earlier
    exits = job.failures if failures is None else failures
    return tuple(Attempt(n, ()).ended(exit, LONG_AGO, None) for n, exit in enumerate(exits, 1))


def _status(given: Mapping[str, Any], attempt: Attempt, has_begun: bool, at: float) -> Status:
    """The status that has these fields."""
    state, stop, gone = given["state"], given["stop"], given["suspension"]
    active = state in (JobState.STARTING, JobState.RUNNING)
    if state is JobState.STOPPING or (active and stop):
        return Stopping(attempt, stop or Cause.CANCELLED, gone)
    if active and gone:
        return Paused(JobState.SUSPENDED, attempt, gone)
    if active:
        return Active(state, attempt)
    if state in (JobState.SUSPENDING, JobState.SUSPENDED, JobState.RESUMING):
        usual = Suspension(at, "preempted", attempt.gpus, "", "", 0, 0)
        return Paused(state, attempt, gone or usual)
    if state in ENDED:
        exit = given["exit"] or Exit(_CAUSES[state])
        ended_at = at if given["ended_at"] is None else given["ended_at"]
        its = attempt.ended(exit, ended_at, stop) if has_begun else None
        return Over(state, exit, ended_at, its)
    return Waiting(state)


def a_gpu(index: int = 0, memory_mib: int = 40_960, **changes: object) -> Gpu:
    gpu = Gpu(GpuId(f"GPU-{index:08d}"), index, "NVIDIA A100-PCIE-40GB", memory_mib)
    return replace(gpu, **changes)  # type: ignore[arg-type]


def a_gpu_view(index: int = 0, *, at: float = 0.0, **changes: object) -> GpuView:
    """An idle GPU with a fresh sample. Its `score` may be given, too."""
    gpu = a_gpu(index)
    sample = GpuSample(gpu.id, at, 0, gpu.memory_mib, 0.0, 0.0, 0.0)
    score = changes.pop("score", None) or Score(0.0, 0.0, 0.0, "sm_active")
    recent = Recent.with_score(score)  # type: ignore[arg-type]
    changes.setdefault("early", changes.get("settling"))
    view = GpuView(gpu, sample, recent, (), gpu.memory_mib, 0, None, None, None)
    return replace(view, **changes)  # type: ignore[arg-type]


def a_view(
    gpus: Iterable[GpuView],
    queue: Iterable[Job],
    settings: Settings | None = None,
    now: float = 0.0,
    history: History | None = None,
    models: Mapping[str, Model] | None = None,
    memory: object = None,
) -> View:
    settings, queue = settings or Settings(), tuple(queue)
    nodes, node_of = by_node(gpus)
    nodes = tuple(NodeView(node.name, with_server(node.gpus, settings)) for node in nodes)
    running = {job.id: job for node in nodes for gpu in node.gpus for job in gpu.residents}
    return View(
        now,
        nodes,
        node_of,
        queue,
        tuple(running.values()),
        settings,
        history or History(),
        models or {},
        memory=memory,
        preemptible=_preemptible(nodes, queue, settings, now),
    )


def _preemptible(
    nodes: Iterable[NodeView], queue: Iterable[Job], settings: Settings, now: float
) -> dict[JobId, Literal["suspend", "requeue"]]:
    gpus = [gpu for node in nodes for gpu in node.gpus]
    samples = [gpu.sample for gpu in gpus]
    running = {job.id: job for gpu in gpus for job in gpu.residents}
    suspended = [job for job in (*queue, *running.values()) if job.suspension]
    match settings.limits.preemption:
        case "suspend":
            mib = {job.id: memory_of(job, samples) for job in running.values()}
            return {
                job.id: "suspend"
                for job in running.values()
                if not refusal(job, mib[job.id], suspended, settings, now)
            }
        case True:
            able = (job for job in running.values() if job.spec.requeue and not job.leaves)
            return {job.id: "requeue" for job in able}
        case _:
            return {}


def random_view(seed: int, settings: Settings) -> View:
    """Up to 6 GPUs or MIG instances on one or two servers, some of them shared, and up to 11 jobs
    in line."""
    gpus, queue = _random_server(seed)
    return a_view(map(replace, gpus), queue, settings)  # new GPUs: nothing in their caches


@lru_cache(maxsize=256)
def _random_server(seed: int) -> tuple[Sequence[GpuView], Sequence[Job]]:
    rng = random.Random(seed)
    gpus = []
    servers = rng.choice((1, 1, 2))
    for index in range(rng.randint(1, 6)):
        divided = GpuId("GPU-divided") if rng.random() < 0.15 else None
        external_mib = 0 if rng.random() < 0.85 else 5_000
        residents = tuple(
            a_job(
                100 + 10 * index + n,
                state=JobState.RUNNING,
                gpus=(a_gpu(index).id,),
                started_at=0.0,
                profile=_random_profile(rng),
                prediction=_random_prediction(rng),
            )
            for n in range(rng.choice((0, 0, 1, 2)))
        )
        busy = rng.random() if residents else 0.0
        gpus.append(
            a_gpu_view(
                index,
                gpu=a_gpu(index, parent=divided, node=f"node{index % servers}"),
                stale=rng.choice((None, None, None, None, Reason("stale", 5, 3600, "s"))),
                residents=residents,
                free_mib=(rng.randrange(0, 40_960) if residents else 40_960) - external_mib,
                external_mib=external_mib,
                score=Score(busy, busy / 2, busy / 2, "sm_active", busy, 30),
                drained="maintenance" if rng.random() < 0.1 else None,
            )
        )
    queue = []
    for id in range(1, rng.randint(2, 12)):
        mib = rng.choice((None, 500, 8_000, 39_000, 60_000))
        estimate = Estimate(mib, "declared", firm=rng.random() < 0.5) if mib else None
        retry = None
        if rng.random() < 0.2:
            retry = rng.choice((Retry("oom", exclusive=True), Retry("oom", avoid=(a_gpu().id,))))
        spec = a_spec(
            gpus=rng.choice((1, 1, 2)),
            uid=rng.choice((1000, 1000, 1001)),
            batch_size=rng.choice((None, 1, 48, 64)),
            not_on="0" if id % 5 == 4 else None,
        )
        job = a_job(id, spec=spec, estimate=estimate, retry=retry)
        known = replace(job, profile=_random_profile(rng), prediction=_random_prediction(rng))
        queue.append(known)
    return gpus, queue


def _random_profile(rng: random.Random) -> Profile | None:
    if rng.random() < 0.4:
        return None
    names = ("gpu_utilization", "memory_utilization", "sm_active", "dram_active")
    told = tuple(Indicator(name, rng.random(), 0.01) for name in names if rng.random() < 0.8)
    return Profile(rng.choice((0.0, 200.0)), rng.randrange(500, 20_000), told)


def _random_prediction(rng: random.Random) -> Prediction | None:
    return None if rng.random() < 0.3 else Prediction(rng.uniform(1.0, 1e5), "history")


@dataclass(frozen=True, slots=True)
class ServerStandIn:
    """A server on which every trial ends the same way; `tried` has what was to be run."""

    outcome: Trial
    past: tuple[Run, ...]
    gpu: str
    driver: str
    tried: list[tuple[str, ...]] = field(default_factory=list)
    explain: bool = False

    def users(self) -> Collection[Owner]:
        return {run.spec.owner for run in self.past}

    def runs(self, owner: Owner) -> Sequence[Run]:
        return [run for run in self.past if run.spec.owner == owner]

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        if tuple(argv) not in self.tried:  # the same question is not asked of the machine twice
            self.tried.append(tuple(argv))
        return self.outcome


def a_server(
    outcome: Trial | None = None,
    runs: Iterable[Run] = (),
    gpu: str = "NVIDIA A100-PCIE-40GB",
    driver: str = "570.124.06",
) -> ServerStandIn:
    """The server passed to an estimator's factory. By default, no program can be started on it."""
    return ServerStandIn(outcome or Trial(b"", "", error="no such user"), tuple(runs), gpu, driver)


def a_run(peak_mib: int = 8_000, estimate: Estimate | None = None, **changes: object) -> Run:
    """A successful run of `a_spec`. Takes fields of the spec, too."""
    gpu = str(changes.pop("gpu", "NVIDIA A100-PCIE-40GB"))
    ended_at = float(changes.pop("ended_at", 1e9))  # type: ignore[arg-type]
    started_at = float(changes.pop("started_at", ended_at))  # type: ignore[arg-type]
    return Run(a_spec(**changes), peak_mib, estimate, gpu, started_at, ended_at)


def outcomes(answers: Iterable[bytes] = ()) -> Iterator[Trial]:
    """Trials that fail in every way, and those that end with `answers`, whole and cut off."""
    yield Trial(b"", "", error="no such directory")
    yield Trial(b"", "working…\n" * 1000, timed_out=True)
    yield Trial(b"", "", signal=9)
    yield Trial(b"", "Traceback …\nModuleNotFoundError: No module named 'torch'\n", code=1)
    yield Trial(b"", "", code=0)
    for nonsense in (b"\xff\x00", b"[1, 2]", b"7", b"null", b"{}"):
        yield Trial(nonsense, "", code=0)
    for answer in answers:
        yield Trial(answer, "", code=0)
        yield Trial(answer[:-1], "", code=0)


def histories() -> Iterator[tuple[Run, ...]]:
    """Histories of earlier runs."""
    yield ()
    yield (a_run(),)
    estimate = Estimate(7_000, "trace", 5_000, 8_000, parts=(("context", 500),), stack="another")
    peaks = (8_000, 8_100, 1, 7_900, 60_000)
    yield tuple(a_run(peak, estimate, uid=1000 + peak % 2) for peak in peaks * 4)


def specs() -> Iterator[JobSpec]:
    """Jobs of many kinds."""
    yield a_spec()
    yield a_spec(memory_mib=8_000)
    yield a_spec(gpus=2, conda_env="torch", env=(("VIRTUAL_ENV", "/home/ada/env"),))
    for line in (
        "true",
        "./train.sh --lr=0.1",
        "python",
        "python -m torch.distributed.run --nproc_per_node 2 train.py --batch-size 64",
        "python -c pass",
        "timm:resnet50 --batch-size 64",
        "julia train.jl model.depth=8 -1 -- é",
    ):
        yield a_spec(argv=tuple(line.split()))
