"""Asks estimators: about a job that is only thought of, and about waiting ones, in turn."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import MISSING, dataclass, fields, replace
from hashlib import blake2b
from threading import Lock
from typing import Any

from carmad import registry
from carmad.config import Settings
from carmad.core.ports import Server
from carmad.core.types import Estimate, Job, JobId, JobSpec, Refusal
from carmad.engine.threads import Threads
from carmad.errors import CarmaError
from carmad.options import OPTIONS

log = logging.getLogger(__name__)

AT_ONCE = 2
FRESH_S = 60.0  # an answer is good for like jobs: a script may be edited after that
ANSWERS_KEPT = 256
MOST_LETTERS = 1000  # of what an exception says

# The options that do not change how much memory a job needs, at their defaults.
NEUTRAL: dict[str, Any] = {
    field.name: "" if field.default is MISSING else field.default
    for field in fields(JobSpec)
    if field.name in OPTIONS and not OPTIONS[field.name].memory
}

Answer = Estimate | Refusal


def ask(name: str, settings: Settings, server: Server, spec: JobSpec) -> Answer:
    """One estimator about one job. Never raises. Whatever happens to auto, the user's own word
    stands."""
    answer = _asked(name, settings, server, spec)
    if name == "auto" and isinstance(answer, Refusal) and spec.declared:
        return replace(spec.declared, seconds=answer.seconds, notes=(answer.why,))
    return answer


def _asked(name: str, settings: Settings, server: Server, spec: JobSpec) -> Answer:
    begun = time.perf_counter()
    try:
        return registry.estimator(name, settings, server).estimate(spec)
    except (CarmaError, TimeoutError) as error:
        why = str(error)
    except Exception as error:
        log.exception("the estimator %s failed", name)
        why = f"{name} failed: {error!r:.200}"
    why = why[:MOST_LETTERS].encode("utf-8", "replace").decode()  # it may be a script's own words
    return Refusal(why, name, time.perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class Guess:
    """What one estimator said about a job, and whether jobs would be placed by its word."""

    source: str
    answer: Answer
    seconds: float
    chosen: bool


def guesses(settings: Settings, server: Server, spec: JobSpec) -> list[Guess]:
    """All installed estimators about one job, but auto, which only chooses among them."""
    answers: dict[str, tuple[Answer, float]] = {}
    for name in registry.names("estimators"):
        if name != "auto":
            begun = time.perf_counter()
            answer = ask(name, settings, server, spec)
            answers[name] = answer, answer.seconds or time.perf_counter() - begun
    # Last: a script is looked at once, and whose question that was is told how long it took.
    mine = answers.get(settings.estimator)
    decisive = mine[0] if mine else ask(settings.estimator, settings, server, spec)
    deciding = {settings.estimator, decisive.source} if isinstance(decisive, Estimate) else set()
    return [
        Guess(name, answer, seconds, chosen=name in deciding)
        for name, (answer, seconds) in answers.items()
    ]


@dataclass(frozen=True, slots=True)
class _Asked:
    at: float  # monotonic
    answer: Future[Answer]


class Estimates:
    """Of waiting jobs: a few at a time, users in turn, and like jobs once.

    `ask` may take long; `tell` gets the answer for each job that was `put`.
    Jobs that say themselves what they need are answered apart from the others: they wait for no
    script to be looked at.
    """

    def __init__(
        self, ask: Callable[[JobSpec], Answer], tell: Callable[[JobId, Answer], None]
    ) -> None:
        self._ask = ask
        self._tell = tell
        self._declared = Threads(1, "declared")
        self._others = Threads(AT_ONCE, "estimates")
        # By user; the first user's turn is next.
        self._waiting: OrderedDict[int, OrderedDict[JobId, Job]] = OrderedDict()
        self._asked: dict[bytes, _Asked] = {}
        self._lock = Lock()

    def put(self, job: Job) -> None:
        if job.spec.memory_mib is not None:
            self._declared.submit(self._answer, job)
            return
        with self._lock:
            self._waiting.setdefault(job.spec.uid, OrderedDict())[job.id] = job
        self._others.submit(self._one)

    def ended(self, job: JobId) -> None:
        """It needs no answer any more, and others may be answered better by what it taught."""
        with self._lock:
            self._asked.clear()
            for jobs in self._waiting.values():
                jobs.pop(job, None)

    def close(self) -> None:
        """Jobs that have no answer yet stay as they are: the next daemon asks for them."""
        for pool in (self._declared, self._others):
            pool.shutdown(cancel_futures=True)

    def _one(self) -> None:
        if job := self._next():
            self._answer(job)

    def _answer(self, job: Job) -> None:
        asked, new = self._question(_alike(job.spec))
        asked.answer.add_done_callback(lambda done: self._tell(job.id, done.result()))
        if new:
            try:
                answer = self._ask(job.spec)
            except Exception as error:  # else all like jobs would wait for good
                log.exception("an estimate failed")
                answer = Refusal(f"it failed: {error!r:.200}", "carmad")
            asked.answer.set_result(answer)

    def _next(self) -> Job | None:
        with self._lock:
            while self._waiting:
                uid, jobs = self._waiting.popitem(last=False)
                if jobs:
                    _, job = jobs.popitem(last=False)
                    self._waiting[uid] = jobs  # behind the other users
                    return job
            return None

    def _question(self, alike: bytes) -> tuple[_Asked, bool]:
        """The one question for all jobs alike, and whether it is new: then it is to be asked."""
        now = time.monotonic()
        with self._lock:
            known = self._asked.get(alike)
            if known and now - known.at < FRESH_S:
                return known, False
            self._asked.pop(alike, None)
            asked = self._asked[alike] = _Asked(now, Future())
            while len(self._asked) > ANSWERS_KEPT:
                del self._asked[next(iter(self._asked))]
            return asked, True


def _alike(spec: JobSpec) -> bytes:
    """The same for all jobs that need the same memory. A digest, as answers outlive the jobs."""
    what = replace(spec, **NEUTRAL)
    return blake2b(repr(what).encode(errors="surrogatepass"), digest_size=20).digest()
