"""Asks estimators, about waiting jobs and about jobs that are not submitted."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import partial
from hashlib import blake2b
from threading import Event, Lock
from typing import Any

from carmad import beats, registry
from carmad.config import Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate, Refusal
from carmad.core.jobs.job import Job
from carmad.core.jobs.recurrence import telling_params
from carmad.core.jobs.spec import JobSpec
from carmad.core.ports import Explains, Measures, Server
from carmad.errors import CarmaError
from carmad.explanation import ExplanationOut
from carmad.options import OPTIONS
from carmad.threads import SharedThreads, Threads

log = logging.getLogger(__name__)

EACH = 2  # estimates of one user at a time; one more of others
DECLARED_LATE_S, LATE_S = 60.0, 600.0  # the latter for a chain of estimators, each with a script
LAUNCH_S = 0.02  # a job that can start at once is launched by then
PAUSE_S = 0.25  # before the script of a launched job is tried: many a job is over by then
FRESH_S = 60.0  # how long an answer is reused for identical jobs: scripts may be edited
ANSWERS_KEPT = 256
MOST_LETTERS = 1000  # characters of an exception's message

# The options that do not affect how much memory a job needs, at their defaults.
NEUTRAL: dict[str, Any] = {
    each.name: "" if each.default is MISSING else each.default
    for each in fields(JobSpec)
    if each.name in OPTIONS and not OPTIONS[each.name].memory
}

Answer = Estimate | Refusal


def ask(name: str, settings: Settings, server: Server, spec: JobSpec) -> Answer:
    """Ask one estimator about one job. Never raises. If auto has no estimate, declared memory is
    used."""
    answer = _try(name, lambda: registry.estimator(name, settings, server).estimate(spec))
    if name == "auto" and isinstance(answer, Refusal) and spec.declared:
        return replace(spec.declared, seconds=answer.seconds, notes=(answer.why,))
    return answer


def decide(settings: Settings, server: Server, spec: JobSpec) -> Answer:
    """The answer by which a job is placed: that of the estimator in the settings. A job that asks
    for what was measured is promised that, if anything was."""
    if spec.wants_measured and isinstance(found := measure(settings, server, spec), Estimate):
        return found
    return ask(settings.estimator, settings, server, spec)


def measure(settings: Settings, server: Server, spec: JobSpec) -> Answer:
    """What earlier runs of the job used, if the job or the settings ask for that."""
    if not spec.wants_measured and settings.estimator not in ("auto", "history"):
        return Refusal("the estimator does not use earlier runs", settings.estimator)
    found = measured(settings, server, spec, looks=True)
    if isinstance(found, Estimate):
        return replace(found, firm=spec.wants_measured)
    return found


def measured(settings: Settings, server: Server, spec: JobSpec, looks: bool) -> Answer:
    """What earlier runs of the job used. `looks`: as of `Measures`. Never raises."""

    def ask() -> Answer:
        for each in registry.estimators_that(Measures, settings, server):
            return each.measured(spec, looks)
        return Refusal("no estimator measures", "history")

    return _try("history", ask)


def _try(name: str, ask: Callable[[], Answer]) -> Answer:
    begun = time.perf_counter()
    try:
        return ask()
    except (CarmaError, TimeoutError) as error:
        why = str(error)
    except Exception as error:
        log.exception("the estimator %s failed", name)
        why = f"{name} failed: {error!r:.200}"
    why = why[:MOST_LETTERS].encode("utf-8", "replace").decode()  # it may come from a script
    return Refusal(why, name, time.perf_counter() - begun)


def patient(settings: Settings, within_s: float | None = None) -> Settings:
    """With more time for scripts, as long as nothing waits for the answer."""
    estimation = settings.estimation
    within_s = max(estimation.patient_s, estimation.within_s) if within_s is None else within_s
    return replace(settings, estimation=replace(estimation, within_s=within_s))


@dataclass(frozen=True, slots=True)
class Guess:
    """One estimator's answer about a job, and whether it would be used to place the job."""

    source: str
    answer: Answer
    seconds: float
    chosen: bool


def guesses(settings: Settings, server: Server, spec: JobSpec) -> list[Guess]:
    """The answers of all installed estimators but auto, which only chooses among them."""
    answers: dict[str, tuple[Answer, float]] = {}
    for name in registry.names("estimators"):
        if name != "auto":
            begun = time.perf_counter()
            answer = ask(name, settings, server, spec)
            answers[name] = answer, answer.seconds or time.perf_counter() - begun
    # Last: a script is traced only once, and the estimator that caused it shows how long it took.
    mine = None if spec.wants_measured else answers.get(settings.estimator)
    decisive = mine[0] if mine else decide(settings, server, spec)
    deciding = {settings.estimator, decisive.source} if isinstance(decisive, Estimate) else set()
    return [
        Guess(name, answer, seconds, chosen=name in deciding)
        for name, (answer, seconds) in answers.items()
    ]


def ask_all(
    settings: Settings, server: Server, spec: JobSpec
) -> tuple[list[Guess], ExplanationOut | None]:
    """The same, and what a trial has found out about the memory if `server` wants to know."""
    found = guesses(settings, server, spec)
    try:
        able = registry.estimators_that(Explains, settings, server) if server.explain else ()
        return found, next(filter(None, (each.explain(spec) for each in able)), None)
    except Exception:  # it is made of what the user's process has sent
        log.exception("an explanation failed")
        return found, None


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float  # monotonic
    answer: Future[Answer] = field(default_factory=Future)
    jobs: set[JobId] = field(default_factory=set)  # that it was asked for
    abandoned: Event = field(default_factory=Event)  # none of them needs the answer any more
    launched: Event = field(default_factory=Event)  # one of them has started without it

    def is_outdated(self, now: float) -> bool:
        return self.abandoned.is_set() or (self.answer.done() and now - self.at >= FRESH_S)


class Estimates:
    """Estimates waiting jobs: a few at a time, users in turn, and identical jobs once.

    `ask` may take long, and longer if it is patient; `tell` gets the answer for each job that was
    `put`. If the time was too short for it, `ask` is asked again patiently, one job at a time, and
    `tell` gets a second answer: a job need not wait for its start meanwhile. A job that is `put`
    with a late estimate has had its first answer, or did not wait for it, under an earlier daemon.
    Jobs with declared memory are answered separately, so that they do not wait for scripts to be
    traced. A job that starts at once, and is over within `PAUSE_S`, is not asked about.
    """

    def __init__(
        self,
        ask: Callable[[JobSpec, bool, Event], Answer],
        tell: Callable[[Job, Answer], None],
    ) -> None:
        """`ask`: its second argument is whether to be patient; when the third one is set, nobody
        waits for the answer any more."""
        self._ask = ask
        self._tell = tell
        self._declared = Threads(1, "declared", DECLARED_LATE_S)
        # A user's files may be slow, and a script hang.
        self._measures = SharedThreads(2, "measurements", LATE_S)
        self._others = SharedThreads(EACH + 1, "estimates", LATE_S, EACH)
        self._patient = SharedThreads(2, "slow-estimates", LATE_S)
        self._asked: dict[bytes, _Asked] = {}
        self._wanted: dict[JobId, _Asked | None] = {}  # by job that needs an answer: its question
        self._lock = Lock()

    def put(self, job: Job) -> None:
        self.drop(job.id)  # an answer to an earlier question does not count any more
        with self._lock:
            self._wanted[job.id] = None
        if job.spec.declared is not None:
            self._declared.submit(self._answer, job, False, 0.0)
        else:
            self._wait(job, patient=job.estimate_late)

    def note_launch(self, job: JobId) -> None:
        """The job starts without an answer."""
        with self._lock:
            if asked := self._wanted.get(job):
                asked.launched.set()

    def drop(self, job: JobId) -> None:
        """The job needs no answer any more."""
        with self._lock:
            asked = self._wanted.pop(job, None)
            self._others.drop(job)
            self._patient.drop(job)
            if asked:
                asked.jobs.discard(job)
                if not asked.jobs:
                    asked.abandoned.set()

    def end(self, job: JobId) -> None:
        """As `drop`, and others may get a better answer thanks to it. A question that is being
        asked stays one: short jobs end while others like them wait for it."""
        self.drop(job)
        with self._lock:
            asking = {alike: one for alike, one in self._asked.items() if not one.answer.done()}
            self._asked = asking

    def do_aside(self, job: Job, call: Callable[[], None]) -> None:
        """Something short, for which nobody waits. One that has not begun serves for later runs of
        the same job, too."""
        question = job.group, job.spec.memory_mib
        with contextlib.suppress(RuntimeError):  # the daemon is stopping, and the next one asks
            self._measures.submit(job.spec.uid, call, key=question)

    def close(self) -> None:
        """Jobs without an answer stay as they are: the next daemon requests their estimates."""
        self._declared.shutdown(cancel_futures=True)
        for pool in (self._measures, self._others, self._patient):
            pool.shutdown()

    def _wait(self, job: Job, patient: bool) -> None:
        until = time.monotonic() + LAUNCH_S
        pool = self._patient if patient else self._others
        with contextlib.suppress(RuntimeError):  # it is shut down: the daemon is stopping
            pool.submit(job.spec.uid, partial(self._answer, job, patient, until), key=job.id)

    def _answer(self, job: Job, patient: bool, launched_by: float) -> None:
        asked, new = self._question(job.id, _alike(job.spec, patient))
        if asked is None:
            return
        asked.answer.add_done_callback(lambda _: self._deliver(job, asked, patient))
        if new:
            beats.at(f"the memory of job {job.id}")
            try:
                launch_s = launched_by - time.monotonic()
                if launch_s > 0 and asked.launched.wait(launch_s):
                    asked.abandoned.wait(PAUSE_S)
                if asked.abandoned.is_set():
                    answer: Answer = Refusal("it is over", "carmad")  # nobody reads this
                else:
                    answer = self._ask(job.spec, patient, asked.abandoned)
            except Exception as error:  # otherwise all identical jobs would wait for ever
                log.exception("an estimate failed")
                answer = Refusal(f"it failed: {error!r:.200}", "carmad")
            asked.answer.set_result(answer)

    def _deliver(self, job: Job, asked: _Asked, patient: bool) -> None:
        answer = asked.answer.result()
        if patient and isinstance(answer, Refusal):
            answer = replace(answer, late=False)  # there is no third answer
        again = isinstance(answer, Refusal) and answer.late
        with self._lock:
            if self._wanted.get(job.id) is not asked:
                return
            if again:
                self._wanted[job.id] = None
            else:
                del self._wanted[job.id]
        self._tell(job, answer)
        if again:
            self._wait(job, patient=True)

    def _question(self, job: JobId, alike: bytes) -> tuple[_Asked | None, bool]:
        """The shared question of identical jobs, and whether it is new and must be asked. None if
        the job needs no answer any more."""
        now = time.monotonic()
        with self._lock:
            if job not in self._wanted:
                return None, False
            asked = self._asked.get(alike)
            new = asked is None or asked.is_outdated(now)
            if asked is None or new:
                self._asked.pop(alike, None)
                asked = self._asked[alike] = _Asked(now)
                while len(self._asked) > ANSWERS_KEPT:
                    del self._asked[next(iter(self._asked))]
            asked.jobs.add(job)
            self._wanted[job] = asked
            return asked, new


def _alike(spec: JobSpec, patient: bool) -> bytes:
    """A key that is equal for jobs that need the same memory. A digest, as it outlives the jobs."""
    what = replace(spec, **NEUTRAL), telling_params(spec), patient
    return blake2b(repr(what).encode(errors="surrogatepass"), digest_size=20).digest()
