"""What owners may do to a job in each state, and whether it can be suspended. The core acts on
these verdicts, and the HTTP API answers with them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from carmad.config import Settings, Suspending
from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs.attempt import FOR_GOOD, SENT_BACK, GpuId, JobId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import After, JobSpec
from carmad.core.jobs.states import JobState
from carmad.core.messages import UpdateRequested
from carmad.options import OPTIONS, UNTIL_END
from carmad.readable import duration, gib

QUANTUM = 30.0  # a job runs for so many times what suspending it costs, before the next suspension
OVERSTAYED = "it was suspended for longer than suspend.parked_s"


@dataclass(frozen=True, slots=True)
class Verdict:
    words: str  # for people, after the job's name
    acts: bool = True  # False: there is nothing to do
    refused: bool = False


def cancel(job: Job) -> Verdict:
    """Also cancels a job that is being stopped only to be requeued."""
    if job.ended:
        return _refuse(_end_words(job))
    if job.stop in FOR_GOOD:
        return Verdict("is already being stopped", acts=False)
    return Verdict("is being stopped" if job.lives else "cancelled")


def hold(job: Job, held: bool) -> Verdict:
    """Hold (`held`) or release a job that is waiting or being stopped to be requeued."""
    word = "held" if held else "released"
    if job.ended:
        return _refuse(_end_words(job))
    if job.suspension and job.state is not JobState.STOPPING:
        verb = "suspend" if held else "resume"
        return _refuse(f"is {_words(job.state)}: use carma {verb}")
    if job.holds_gpus and job.stop not in SENT_BACK:
        return _refuse(f"is {_words(job.state)}: only a waiting job can be {word}")
    if job.held == held:
        return Verdict("was already held" if held else "was not held", acts=False)
    return Verdict(word)


def suspend(job: Job, refusal: str) -> Verdict:
    """Suspend a running job, or keep a suspended one from resuming. `refusal`: why that cannot be
    now; "" if it can."""
    if job.ended:
        return _refuse(_end_words(job))
    if job.state in (JobState.SUSPENDING, JobState.SUSPENDED):
        if job.held:
            return Verdict("is suspended already", acts=False)
        return _refuse(refusal) if refusal else Verdict("stays suspended")
    return _refuse(refusal) if refusal else Verdict("is being suspended")


def resume(job: Job) -> Verdict:
    """Let a suspended job return to GPUs when there are some."""
    if job.ended:
        return _refuse(_end_words(job))
    if job.state not in (JobState.SUSPENDING, JobState.SUSPENDED):
        return _refuse(f"is {_words(job.state)}: only a suspended job can resume")
    if not job.held:
        return Verdict("waits for GPUs already", acts=False)
    return Verdict("resumes as soon as there are GPUs for it")


def move(job: Job, gpus: Sequence[Gpu], refusal: str, settings: Settings) -> Verdict:
    """Move a running job to these GPUs. `refusal`: why it cannot be suspended now."""
    if job.ended:
        return _refuse(_end_words(job))
    if refusal:
        return _refuse(refusal)
    if len({gpu.id for gpu in gpus}) != job.spec.gpus:
        return _refuse(f"has {job.spec.gpus} GPUs: name as many")
    if {gpu.id for gpu in gpus} == set(job.gpus):
        return Verdict("is there already", acts=False)
    if not settings.suspend.moves:
        return _refuse("cannot move: jobs resume only where they were ([suspend] moves)")
    return Verdict("is being moved")


def update(
    job: Job, asked: UpdateRequested, live: Mapping[JobId, Job], now: float
) -> tuple[Verdict, JobSpec]:
    """Change options of a job that has not ended, each for as long as the table of options says.
    Returns its options as they are to be. `live`: all jobs that have not ended."""
    values = {name: getattr(asked.spec, name) for name in asked.names}
    if values.get("array") and job.spec.array:  # each task has its own index there
        values["array"] = replace(job.spec.array, limit=values["array"].limit)
    spec = replace(job.spec, **values)
    changed = [name for name in asked.names if getattr(spec, name) != getattr(job.spec, name)]
    flags = ", ".join(OPTIONS[name].flag for name in changed)
    if job.ended:
        return _refuse(_end_words(job)), job.spec
    if not changed:
        return Verdict("is as it should be", acts=False), job.spec
    if job.lives:
        fixed = [OPTIONS[name].flag for name in changed if name not in changeable(job)]
        if fixed:
            words = f"is {_words(job.state)}: it is too late to change {', '.join(fixed)}"
            return _refuse(words), job.spec
        if why := _wrong_limit(job, spec, asked.admin, now):
            return _refuse(f"is {_words(job.state)}: {why}"), job.spec
    if spec.interactive and "requeue" in changed:
        return _refuse("runs at a terminal: only its owner can start it again"), job.spec
    if "after" in changed and _waits_for(job.ids, spec.after, live):
        return _refuse("would wait for itself"), job.spec
    return Verdict(f"updated: {flags}"), spec


def actions(job: Job, refusal: str = "") -> tuple[str, ...]:
    """What its owner can do to it now, and would change something. `refusal`: see `suspend`. Not
    what would throw work away that nobody asked to lose: to requeue a job that runs."""
    verdicts = {
        "suspend": suspend(job, refusal),
        "resume": resume(job),
        "cancel": cancel(job),
        "hold": hold(job, True),
        "release": hold(job, False),
        "requeue": requeue(job, {}),
    }
    if job.lives:
        del verdicts["requeue"]
    return tuple(name for name, verdict in verdicts.items() if verdict.acts)


def changeable(job: Job) -> tuple[str, ...]:
    """The options that its owner can change now."""
    if job.ended:
        return ()
    return tuple(
        name
        for name, option in OPTIONS.items()
        if option.change == UNTIL_END or (option.change and not job.lives)
        if name != "array" or job.spec.array
    )


def _wrong_limit(job: Job, spec: JobSpec, admin: bool, now: float) -> str:
    """Why a running job cannot get this time limit; "" if it can."""
    before, after = job.spec.time_limit_s, spec.time_limit_s
    if before is not None and (after is None or after > before) and not admin:
        return "only administrators can give it more time"
    if after is not None and after != before and after <= job.attained_s(now):
        return f"it has run for {duration(job.attained_s(now))} already; carma cancel stops it"
    return ""


def _waits_for(ids: range, after: Iterable[After], live: Mapping[JobId, Job]) -> bool:
    """Whether a job that depends on `after` would wait for one of `ids`, directly or through
    others."""
    left, seen = [each.job for each in after], set[JobId]()
    while left:
        one = left.pop()
        if one in ids:
            return True
        if one in live and one not in seen:
            seen.add(one)
            left += [each.job for each in live[one].spec.after]
    return False


def requeue(job: Job, ended: Mapping[JobId, JobState]) -> Verdict:
    """Run a job again, under the same id: one that has ended, or that is stopped for it. `ended`:
    how its dependencies ended."""
    if not (job.ended or job.lives):
        return _refuse(f"is {_words(job.state)}: it waits for its turn already")
    if job.spec.interactive:
        return _refuse("ran at a terminal: run it there again")
    if job.stop in FOR_GOOD and job.lives:
        return _refuse("is being stopped: requeue it when it has ended")
    if job.lives and not job.spec.requeue:
        return _refuse("runs, and was submitted with --no-requeue")
    if job.lives:
        back = job.stop in SENT_BACK
        return Verdict("is being requeued already" if back else "is being requeued", not back)
    if culprit := unmet_dependency(job, ended):
        return _refuse(f"depends on {culprit}, which ended as {_words(ended[culprit.job])}")
    return Verdict("requeued")


def _refuse(words: str) -> Verdict:
    return Verdict(words, acts=False, refused=True)


def _end_words(job: Job) -> str:
    return f"has already ended: {_words(job.state)}"


def _words(state: JobState) -> str:
    return state.value.replace("_", " ")


def unmet_dependency(job: Job, ended: Mapping[JobId, JobState]) -> After | None:
    """A dependency of the job that ended the wrong way, if any."""
    for after in job.spec.after:
        state = ended.get(after.job)
        if state is not None and not after.kind.accepts(state is JobState.SUCCEEDED):
            return after
    return None


def cost_s(mib: int, settings: Suspending) -> float:
    """What it takes to move so much memory to the host and back."""
    return mib / settings.out_mib_s + mib / settings.in_mib_s + 2 * settings.fixed_s


def refusal(
    job: Job,
    mib: Mapping[GpuId, int],
    suspended: Iterable[Job],
    settings: Settings,
    now: float,
    asked: bool = False,
) -> str:
    """Why the job cannot be suspended now, for people, after its name; "" if it can. `mib`: what it
    holds on each of its GPUs that can be read; `suspended`: all jobs with a suspension; `asked`:
    until somebody resumes it, as it may be already, for others."""
    if asked and job.state in (JobState.SUSPENDING, JobState.SUSPENDED):
        return _over_share(job, host_mib(job), suspended, settings)
    if why := unfit(job, mib, settings, now):
        return why
    suspended = tuple(suspended)
    holds_mib, all_mib = sum(mib.values()), settings.suspend.host_memory_mib
    room_mib = host_room_mib(suspended, settings)
    if holds_mib > room_mib:
        return (
            f"holds {gib(holds_mib)} on GPUs, and of the host's memory for suspended jobs"
            f" {gib(room_mib)} of {gib(all_mib)} are left ([suspend] host_memory_mib)"
        )
    return _over_share(job, holds_mib, suspended, settings) if asked else ""


def _over_share(job: Job, mib: int, suspended: Iterable[Job], settings: Settings) -> str:
    """Why its owner's suspended jobs may not take so much more of the host's memory; "": they
    may."""
    theirs = [each for each in suspended if each.held and each.spec.owner == job.spec.owner]
    all_mib = settings.suspend.host_memory_mib
    parked_mib = all_mib - host_room_mib(theirs, settings)
    most_mib = int(settings.suspend.per_user * all_mib)
    if parked_mib and parked_mib + mib > most_mib:
        return (
            f"takes {gib(mib)}, and its owner's suspended jobs have {gib(parked_mib)}"
            f" of the host's memory, of {gib(most_mib)} at most ([suspend] per_user)"
        )
    return ""


def unfit(job: Job, mib: Mapping[GpuId, int], settings: Settings, now: float) -> str:
    """As `refusal`, if the host had room."""
    its = job.current
    if job.state is not JobState.RUNNING:
        return f"is {job.state}: only a running job can be suspended"
    if why := never(job, settings):
        return why
    if len(its.suspended_lately(now)) >= settings.suspend.most_per_hour:
        return f"has been suspended {settings.suspend.most_per_hour} times within an hour"
    quantum_s = QUANTUM * cost_s(sum(mib.values()), settings.suspend)
    if its.resumed_at is not None and now - its.resumed_at < quantum_s:
        return f"has just resumed: it runs for {duration(quantum_s)} at least"
    if mib.keys() != set(job.gpus):
        return "has a GPU that cannot be read"
    return ""


def overstayed_s(job: Job, settings: Settings, now: float) -> float:
    """How long it has been suspended beyond the time for which it is left alone; 0: it has not, or
    nobody wants it to be suspended."""
    its = job.suspension
    if not its or not job.held or job.state is not JobState.SUSPENDED:
        return 0.0
    return max(0.0, its.has_parked_s(now) - settings.suspend.parked_s)


def host_room_mib(suspended: Iterable[Job], settings: Settings) -> int:
    """What the host can still take. `suspended`: all jobs with a suspension."""
    return max(0, settings.suspend.host_memory_mib - sum(map(host_mib, suspended)))


def host_mib(job: Job) -> int:
    return job.suspension.host_mib if job.suspension else 0


def never(job: Job, settings: Settings) -> str:
    """Why the job cannot be suspended at any time, as it runs; "" if it can."""
    if not settings.suspend.host_memory_mib:
        return "cannot be suspended: this server suspends no jobs ([suspend] host_memory_mib)"
    if not job.gpus:
        return "has no GPUs"
    if job.mode in (Mode.MPS, Mode.MIG, None):
        where = "on a MIG instance" if job.mode is Mode.MIG else "under MPS"
        return f"cannot be suspended: it runs {where}, where the driver cannot do that"
    if its := job.spec.allocation:
        return f"cannot be suspended: it is part of a job of {its.system}'s, whose time goes on"
    if job.unsuspendable:
        return f"cannot be suspended: {job.unsuspendable}"
    return ""
