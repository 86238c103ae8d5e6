"""What can be learned from finished jobs, and the `Server` through which estimators access it."""

from __future__ import annotations

import contextlib
from collections import Counter, deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event, Lock

from carmad.attempt.copies import Copies
from carmad.config import Settings
from carmad.core.messages import Discovered, Step
from carmad.core.ports import Run, Server, Trial
from carmad.core.recurrence import command
from carmad.core.types import Gpu, GpuId, Job, JobSpec, JobState
from carmad.learned.trial import tried

JOBS_PER_USER = 200  # remembered: a large array must not displace other users' jobs
FILES_MIB = 2048  # what a traced script may write, in memory (estimators.tracer.scratch)
PERIODS = 5  # of sampling: a shorter job's peak may have been missed
GPUS_WITHIN_S = 5.0  # at startup, estimates may be requested before the GPUs are found
DRIVER = Path("/sys/module/nvidia/version")


class Experience:
    """Updated with every step in the core's thread; read in any."""

    def __init__(
        self,
        settings: Settings,
        driver: str = "",
        trials: str | None = None,
        copies: Copies | None = None,
    ) -> None:
        """`trials`: the cgroup below which each trial gets its own; `copies`: where they get copies
        of job scripts."""
        self.trials, self.copies = trials, copies
        self.trial_mib = settings.estimation.host_memory_mib + FILES_MIB
        self._shortest_s = PERIODS * settings.monitor.period_s
        self._driver = driver
        self._gpus: dict[GpuId, Gpu] = {}
        self._discovered = Event()
        self._patience_s = GPUS_WITHIN_S
        self._jobs: dict[int, deque[Job]] = {}  # by user, the newest last
        self._lock = Lock()
        self._closed = Event()

    def remember(self, jobs: Iterable[Job]) -> None:
        """Add jobs from the store, the newest last."""
        with self._lock:
            for job in jobs:
                if self._teaches(job):
                    mine = self._jobs.setdefault(job.spec.uid, deque(maxlen=JOBS_PER_USER))
                    mine.append(job)

    def committed(self, step: Step) -> None:
        for event in step.events:
            if isinstance(event, Discovered) and not event.unread:
                self._gpus = {gpu.id: gpu for gpu in event.gpus}
                self._discovered.set()
        self.remember(step.jobs)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        """Abort running trials."""
        self._closed.set()
        self._discovered.set()

    def server(self, explain: bool = False, abandoned: Event | None = None) -> Server:
        """A `Server` for one question, shared by all estimators that are asked. `abandoned`: when
        it is set, its trials are ended."""
        return _OneQuestion(self, self._driver, explain, abandoned or Event())

    def await_gpus(self) -> None:
        """In an estimator's thread: wait until the GPUs are known, but time out only once."""
        self._discovered.wait(self._patience_s)
        self._patience_s = 0.0

    def gpu(self) -> str:
        """The most common model."""
        models = Counter(gpu.name for gpu in self._gpus.values())
        return models.most_common(1)[0][0] if models else ""

    def users(self) -> Collection[int]:
        with self._lock:
            return tuple(self._jobs)

    def runs(self, uid: int) -> Sequence[Run]:
        with self._lock:
            found = list(self._jobs.get(uid, ()))
        found.sort(key=lambda job: job.ended_at or 0.0, reverse=True)
        return [self._run(job) for job in found]

    def _teaches(self, job: Job) -> bool:
        """Whether its peak is useful: it succeeded in one attempt, with unsplit batches, and was
        watched for long enough."""
        return (
            job.state is JobState.SUCCEEDED
            and job.usage.peak_mib > 0
            and not job.failures
            and job.accumulation == 1
            and job.served_s == 0.0
            and job.started_at is not None
            and job.ended_at is not None
            and job.ended_at - job.started_at >= self._shortest_s
        )

    def _run(self, job: Job) -> Run:
        gpu = self._gpus.get(job.gpus[0]) if job.gpus else None
        assert job.started_at is not None and job.ended_at is not None
        return Run(
            replace(job.spec, argv=command(job.spec)),
            job.usage.peak_mib,
            job.estimate,
            gpu.name if gpu else "",
            job.started_at,
            job.ended_at,
        )


class _OneQuestion:
    """A `Server` that caches trials, so that several estimators share them."""

    def __init__(
        self, experience: Experience, driver: str, explain: bool, abandoned: Event
    ) -> None:
        self.driver, self.explain = driver, explain
        self._experience = experience
        self._abandoned = abandoned
        self._trials: dict[tuple[JobSpec, tuple[str, ...]], Trial] = {}
        self._one_at_a_time = Lock()

    @property
    def gpu(self) -> str:
        self._experience.await_gpus()
        return self._experience.gpu()

    def users(self) -> Collection[int]:
        return self._experience.users()

    def runs(self, uid: int) -> Sequence[Run]:
        self._experience.await_gpus()
        return self._experience.runs(uid)

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        key = (spec, tuple(argv))
        with self._one_at_a_time:
            if key not in self._trials:
                self._trials[key] = tried(
                    spec,
                    argv,
                    within_s,
                    self._is_over,
                    self._experience.trial_mib,
                    self._experience.trials,
                    self._experience.copies,
                )
            return self._trials[key]

    def _is_over(self) -> bool:
        return self._abandoned.is_set() or self._experience.closed


def driver_version() -> str:
    """The version of the loaded NVIDIA driver; "" if there is none."""
    with contextlib.suppress(OSError):
        return DRIVER.read_text().strip()
    return ""
