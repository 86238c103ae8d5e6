"""The GPUs there are: what was read from them, what jobs used of them, which are drained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from carmad.config import Settings
from carmad.core.gpuview import GpuView, free_memory, settling
from carmad.core.messages import Drain
from carmad.core.meter import metered
from carmad.core.types import Gpu, GpuId, GpuSample, Job, JobId, ProcessUse, Usage
from carmad.core.window import Window


class Fleet:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._windows: dict[GpuId, Window] = {}
        self.gpus: dict[GpuId, Gpu] = {}
        self.drains: dict[GpuId, Drain] = {}
        self.usage: dict[JobId, Usage] = {}  # fresher than the jobs' own

    def discover(self, gpus: Iterable[Gpu]) -> None:
        """These are all the GPUs now; those that stay keep their windows."""
        self.gpus.clear()
        self.gpus.update((gpu.id, gpu) for gpu in gpus)
        monitor, weights = self._settings.monitor, self._settings.risk
        self._windows = {
            gpu: self._windows.get(gpu) or Window(monitor, weights) for gpu in self.gpus
        }

    def add(self, sample: GpuSample, residents: tuple[Job, ...]) -> None:
        """Take in a reading of a GPU that `residents` are on; of an unknown GPU it is ignored."""
        if window := self._windows.get(sample.gpu):
            gap = self._settings.monitor.stale_s
            self.usage.update(metered(self.usage, residents, window.last, sample, gap))
            window.add(sample)

    def with_usage(self, job: Job) -> Job:
        """The job with what it was measured to use so far."""
        return replace(job, usage=self.usage.get(job.id, job.usage))

    def processes(self, gpu: GpuId) -> tuple[ProcessUse, ...]:
        """Those of the last reading."""
        window = self._windows.get(gpu)
        return window.last.processes if window and window.last else ()

    def usable(self) -> set[GpuId]:
        """Those that are neither drained nor at fault."""
        faulty = {gpu for gpu, window in self._windows.items() if window.last and window.last.fault}
        return self.gpus.keys() - self.drains.keys() - faulty

    def view(self, gpu: GpuId, residents: tuple[Job, ...], now: float) -> GpuView:
        window = self._windows[gpu]
        fresh = settling(gpu, residents, window.since, now, self._settings.monitor)
        free, outsiders = free_memory(self.gpus[gpu], window.last, residents, settled=fresh is None)
        drain = self.drains.get(gpu)
        return GpuView(
            self.gpus[gpu],
            window.last,
            window.score,
            residents,
            free,
            outsiders,
            fresh,
            drain.reason if drain else None,
        )
