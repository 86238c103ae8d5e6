"""For plugin authors: builders of jobs, GPUs and views, and the conformance checks.

A check raises AssertionError naming the rule that is broken; CARMA's own plugins pass them too.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

from carmad.config import Settings
from carmad.core.decision import AskAgain, Placement, Preemption, Proposal, Reason
from carmad.core.gpuview import GpuView
from carmad.core.ports import Estimator, Policy, Recovery
from carmad.core.types import (
    Cause,
    Estimate,
    Exit,
    Gpu,
    GpuId,
    GpuSample,
    Job,
    JobId,
    JobSpec,
    JobState,
    Retry,
)
from carmad.core.view import View, by_node
from carmad.core.window import Recent, Score
from carmad.sound import is_estimate, is_proposal, is_retry


def a_spec(**changes: object) -> JobSpec:
    base = JobSpec(
        argv=("python", "train.py"), user="ada", uid=1000, gid=1000, cwd="/home/ada", name="train"
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def a_job(id: int = 1, **changes: object) -> Job:
    """A queued job; fields of its spec (`gpus_wanted` for their number) may be given too."""
    wanted = changes.pop("gpus_wanted", 1)
    spec = changes.pop("spec", None) or a_spec(gpus=wanted)
    return replace(Job(JobId(id), spec, JobState.QUEUED, float(id)), **changes)  # type: ignore[arg-type]


def a_gpu(index: int = 0, memory_mib: int = 40_960, **changes: object) -> Gpu:
    gpu = Gpu(GpuId(f"GPU-{index:08d}"), index, "NVIDIA A100-PCIE-40GB", memory_mib)
    return replace(gpu, **changes)  # type: ignore[arg-type]


def a_gpu_view(index: int = 0, *, at: float = 0.0, **changes: object) -> GpuView:
    """An idle GPU with a fresh sample. Its `score` may be given, too."""
    gpu = a_gpu(index)
    sample = GpuSample(gpu.id, at, 0, gpu.memory_mib, 0.0, 0.0, 0.0)
    score = changes.pop("score", None) or Score(0.0, 0.0, 0.0, "sm_active")
    recent = Recent.scored(score)  # type: ignore[arg-type]
    view = GpuView(gpu, sample, recent, (), gpu.memory_mib, 0, None, None, None)
    return replace(view, **changes)  # type: ignore[arg-type]


def a_view(
    gpus: Iterable[GpuView],
    queue: Iterable[Job],
    settings: Settings | None = None,
    now: float = 0.0,
) -> View:
    nodes, node_of = by_node(gpus)
    running = {job.id: job for node in nodes for gpu in node.gpus for job in gpu.residents}
    settings = settings or Settings()
    return View(now, nodes, node_of, tuple(queue), tuple(running.values()), settings)


def check_policy(policy: Policy, settings: Settings | None = None, views: int = 200) -> None:
    """What every placement policy must do, tried on random servers and queues."""
    assert policy.name and policy.name.isidentifier(), "a policy's name is an identifier"
    places = [policy.order(a_job(id)) for id in (1, 2, 1)]
    assert places[0] == places[2], "the same job must have the same place in line"
    assert all(place == place for place in places), "a place in line is a number"
    assert tuple(policy.plan(a_view([], []))) == (), "with no queue there is nothing to plan"
    seen = []
    for seed in range(views):
        view = _random_view(random.Random(seed), settings or Settings())
        plan = tuple(policy.plan(view))
        assert plan == tuple(policy.plan(view)), "the same view must give the same plan"
        _check_plan(plan, view)
        seen.append((view, plan))
    for view, plan in reversed(seen):
        assert plan == tuple(policy.plan(view)), "a plan must not depend on earlier ones"
    view = a_view([a_gpu_view()], [a_job(gpus_wanted=9)])
    plan = tuple(policy.plan(view))
    assert not _placed(plan), "a job that wants 9 of 1 GPU must wait"
    _check_plan(plan, view)
    alone = tuple(policy.plan(a_view([a_gpu_view()], [a_job()])))
    assert _placed(alone), "one job and one idle GPU: it must start"


def _placed(plan: tuple[Proposal, ...]) -> bool:
    return any(isinstance(proposal, Placement) and proposal.gpus for proposal in plan)


def _check_plan(plan: tuple[Proposal, ...], view: View) -> None:
    assert all(map(is_proposal, plan)), "a plan is made of proposals, and those of their types"
    assert plan or not view.queue, "jobs wait, and not one of them is told why"
    proposals = [proposal for proposal in plan if not isinstance(proposal, AskAgain)]
    judged = [proposal.job for proposal in proposals]
    assert len(set(judged)) == len(judged), "one proposal per job"
    running = {job.id for job in view.running}
    for placement in proposals:
        if isinstance(placement, Preemption):
            assert placement.job in running, "only running jobs are preempted"
            continue
        job = view.queued(placement.job)
        assert job is not None, "only queued jobs are placed"
        refused = {verdict.gpu for verdict in placement.verdicts if verdict.refused}
        known = {gpu.id for gpu in view.gpus}
        assert {v.gpu for v in placement.verdicts} <= known, "verdicts are on GPUs of the view"
        if placement.gpus:
            admissible, _ = view.judge(job)
            chosen = set(placement.gpus)
            assert len(chosen) == len(placement.gpus), "each GPU is given once"
            assert len(chosen) == job.spec.gpus, "as many GPUs as the job wants"
            assert chosen <= {gpu.id for gpu in admissible}, "only admissible GPUs"
            assert not chosen & refused, "no GPU is refused and given"
            view = view.with_placement(job, placement.gpus)
        else:
            too_few = len(view.gpus) - len(refused) < job.spec.gpus
            assert placement.reasons or too_few, "a job that waits is told why"


def _random_view(rng: random.Random, settings: Settings) -> View:
    gpus = []
    for index in range(rng.randint(1, 6)):
        residents = tuple(
            a_job(100 + 10 * index + n, state=JobState.RUNNING, gpus=(a_gpu(index).id,))
            for n in range(rng.choice((0, 0, 1, 2)))
        )
        busy = rng.random() if residents else 0.0
        gpus.append(
            a_gpu_view(
                index,
                stale=rng.choice((None, None, None, None, Reason("stale", 5, 3600, "s"))),
                residents=residents,
                free_mib=rng.randrange(0, 40_960) if residents else 40_960,
                score=Score(busy, busy / 2, busy / 2, "sm_active", busy, 30),
                drained="maintenance" if rng.random() < 0.1 else None,
            )
        )
    queue = []
    for id in range(1, rng.randint(2, 12)):
        mib = rng.choice((None, 500, 8_000, 39_000, 60_000))
        estimate = Estimate(mib, "declared", firm=rng.random() < 0.5) if mib else None
        retry = Retry("oom", exclusive=True) if rng.random() < 0.1 else None
        spec = a_spec(gpus=rng.choice((1, 1, 2)), uid=rng.choice((1000, 1000, 1001)))
        queue.append(a_job(id, spec=spec, estimate=estimate, retry=retry))
    return a_view(gpus, queue, settings)


def check_recovery(recovery: Recovery) -> None:
    """What every recovery must do: answer with a Retry or None, and the same each time."""
    assert recovery.name, "a recovery has a name"
    exit = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory", tried_mib=100, free_mib=10)
    earlier = (
        None,
        Retry("out of memory", margin_mib=4096),
        Retry("out of memory", exclusive=True),
    )
    for shared, before in product((False, True), earlier):
        job = a_job(
            state=JobState.RUNNING, gpus=(a_gpu().id,), attempt=1, shared=shared, retry=before
        )
        retry = recovery.decide(job, exit)
        assert retry is None or is_retry(retry), "the answer is a Retry or None"
        assert retry == recovery.decide(job, exit), "the same crash must give the same answer"
        assert retry is None or retry.why, "a retry says why"


def check_estimator(estimator: Estimator) -> None:
    """What every estimator must do: give a sane interval, or None."""
    assert estimator.name, "an estimator has a name"
    for spec in (a_spec(), a_spec(memory_mib=8_000), a_spec(argv=("true",))):
        estimate = estimator.estimate(spec)
        if estimate is not None:
            assert is_estimate(estimate), "the answer is an Estimate or None"
            assert estimate.mib > 0 and estimate.source, "MiB, and who says so"
            low, high = estimate.low or 0, estimate.high or estimate.mib
            assert low <= estimate.mib <= high, "low ≤ estimate ≤ high"
