"""A server on which a bit of everything happens, at random but reproducibly."""

from __future__ import annotations

import random
from collections.abc import Iterator

from carma_testing import FakeServer, a_spec
from carmad.core.jobs.attempt import Cause, Exit, JobId
from carmad.core.messages import (
    CancelRequested,
    DrainRequested,
    HoldRequested,
    RequeueRequested,
    Submitted,
    Tick,
)
from carmad.store import retention

OOM = Exit(Cause.GPU_OOM, 1, evidence="CUDA out of memory", tried_mib=2000, free_mib=100)


class Busy(FakeServer):
    def submit(self, **spec: object) -> JobId:
        """Like the daemon: with the environment separate from the job."""
        whole = a_spec(**spec)
        bare = retention.without_contents(whole)
        id = JobId(self.next_id)
        self.next_id += 1
        self.tell(Submitted(self.now, id, (bare,), env=whole.env))
        return id

    def busy_day(self, seconds: int, seed: int = 0) -> Iterator[int]:
        """A bit of everything, second by second."""
        rng = random.Random(seed)
        ended: list[JobId] = []
        for second in range(seconds):
            self.sample(1.0)
            for gpu in self.gpus:
                self.sm_active[gpu.id] = rng.random()
                self.dram_active[gpu.id] = rng.random() / 2
            if rng.random() < 0.3:
                wishes = {"gpus": rng.choice((1, 1, 1, 2)), "exclusive": rng.random() < 0.1}
                mib = rng.choice((None, 8000, 20_000, 39_000))
                self.submit(memory_mib=mib, env=(("TOKEN", "hush-hush"),), **wishes)
            for id, attempt in list(self.alive):
                if (id, attempt) in self.stopping or rng.random() < 0.06:
                    how = Exit(Cause.SUCCESS, 0) if rng.random() < 0.7 else OOM
                    self.exit(id, how)
                    if self.last(id).ended:
                        ended.append(id)
                elif rng.random() < 0.5:
                    self.run_kernel(id, rng.randrange(500, 8000))
            self._whim(rng, ended)
            yield second

    def _whim(self, rng: random.Random, ended: list[JobId]) -> None:
        live = list(self.scheduler.jobs)
        if live and rng.random() < 0.03:
            self.tell(CancelRequested(self.now, rng.choice(live), "ada"))
        if live and rng.random() < 0.05:
            self.tell(HoldRequested(self.now, rng.choice(live), rng.random() < 0.4, "ada"))
        if ended and rng.random() < 0.03:
            self.tell(RequeueRequested(self.now, self.last(ended.pop()), "ada"))
        if rng.random() < 0.04:
            reason = rng.choice((None, None, "a fan"))
            self.tell(DrainRequested(self.now, rng.choice(self.gpus).id, reason, "root"))
        if rng.random() < 0.05:
            self.tell(Tick(self.now))
