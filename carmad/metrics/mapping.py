"""Files that say which jobs are on which GPU: dcgm-exporter, told of their folder by
`--hpc-job-mapping-dir`, labels its metrics with them (`hpc_job`). A file per GPU, a job per line.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

from carmad.core.gpus.gpu import Gpu
from carmad.core.gpus.sharing import label
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.job import Job
from carmad.core.messages import Discovered, Step
from carmad.edge import Follower, Host

log = logging.getLogger(__name__)


def map_jobs(host: Host) -> JobMapping:
    return JobMapping(host.state_dir / "gpu-jobs")


class JobMapping(Follower):
    """An earlier daemon's files are replaced."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: dict[GpuId, int] = {}  # DCGM's, of the physical GPU
        self._on: dict[JobId, tuple[str, tuple[GpuId, ...]]] = {}  # label and GPUs
        self._written: dict[int, str] = {}
        self._began = False
        self._failed = False

    def on_commit(self, step: Step) -> None:
        found = [event for event in step.events if isinstance(event, Discovered)]
        if found and not {gpu.id for gpu in found[-1].gpus} <= self._numbers.keys():
            self._numbers = number(found[-1].gpus)  # else some are gone: the others keep theirs
        if self._note(step.jobs) or found or self._failed:
            self._write()

    def on_reset(self, jobs: Iterable[Job]) -> None:
        self._on.clear()
        self._note(jobs)
        self._write()

    def _note(self, jobs: Iterable[Job]) -> bool:
        """Whether it changes what is on a GPU."""
        changed = False
        for job in jobs:
            its = (label(job), job.gpus) if job.holds_gpus and job.gpus else None
            if its != self._on.get(job.id):
                changed = True
                if its:
                    self._on[job.id] = its
                else:
                    del self._on[job.id]
        return changed

    def _write(self) -> None:
        lines: dict[int, list[str]] = {one: [] for one in (*self._written, *self._numbers.values())}
        for name, gpus in self._on.values():
            for one in {self._numbers[gpu] for gpu in gpus if gpu in self._numbers}:
                lines[one].append(f"{name}\n")
        try:
            if not self._began:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._began = True
            self._folder.mkdir(exist_ok=True)
            self._folder.chmod(0o755)  # dcgm-exporter may be another user
            for one, text in ((one, "".join(names)) for one, names in lines.items()):
                if text != self._written.get(one):
                    draft = self._folder / f"{one}.new"
                    draft.write_text(text)
                    draft.chmod(0o644)
                    draft.replace(self._folder / str(one))
                    self._written[one] = text
            self._failed = False
        except OSError as error:
            if not self._failed:
                log.warning(
                    "cannot write the job mapping for dcgm-exporter in %s: %s", self._folder, error
                )
            self._failed = True  # try again with the next step


def number(gpus: Iterable[Gpu]) -> dict[GpuId, int]:
    """The number of each unit's physical GPU, in PCI bus order, as DCGM counts by default. A GPU
    without any unit, as MIG is on and has no instance, is not counted."""
    boards: dict[GpuId, int] = {}
    return {gpu.id: boards.setdefault(gpu.parent or gpu.id, len(boards)) for gpu in gpus}
