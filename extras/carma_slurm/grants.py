"""The runs of a job of Slurm's, as its own CARMA on the node takes them: they stay in Slurm's tree,
and ask for no more GPU memory together than Slurm gave the job."""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from carma_slurm.node import SlurmFailed, ask, configuration_gib, name_of
from carmad.attempt.proc import process_stat, read_file, uids
from carmad.config import Cluster
from carmad.plugin import Allocation, CarmaError, Checked, Host, JobSpec, SubmissionCheck
from carmad.readable import gpumem_count

SLURM = "Slurm"
# Only root can make cgroups of these names: below /slurm (v1), or in a scope of its own (v2). Where
# several slurmds may share a machine, as in Debian, the node's name is in both. Slurm 26.05 has no
# number there by default.
_CGROUP = re.compile(
    rb"^\d+:[^:]*:/(?:slurm(?:_[^/]*)?|system\.slice/[^/]*slurmstepd\.scope)/(?:uid_\d+/)?job_(\d+)\b",
    re.MULTILINE,
)
_SLURMSTEPD = re.compile(rb"slurmstepd: \[(\d+)\.")  # its title; it starts a step's processes

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grants(SubmissionCheck):
    """Checks what `carma run` submits in a job of Slurm's."""

    cluster: Cluster

    def allocation(self, pid: int) -> Allocation | None:
        job = job_of(pid)
        return None if job is None else Allocation(SLURM, job)

    def check(self, spec: JobSpec) -> Checked:
        its = spec.allocation
        if not (its and its.system == SLURM and spec.gpus):
            return Checked(spec)
        granted_gib = grant_gib(self.cluster, its.id)
        return Checked(spec, None if granted_gib is None else partial(fits, granted_gib, spec))


def grants(host: Host) -> Grants:
    return Grants(host.settings().cluster)


def grant_gib(cluster: Cluster, job: int) -> int | None:
    """The GPU memory that Slurm gave a job on each of its nodes; None: gpumem is not counted here,
    or Slurm does not answer."""
    if not cluster.engine:
        return None
    try:
        said, _ = ask("squeue", "--noheader", f"--jobs={job}", "--format=%b")
        if (granted := gpumem_count(said.strip())) is not None:
            return granted
        return 0 if configuration_gib(name_of(cluster.node)) else None
    except SlurmFailed as error:
        log.warning("not known how much GPU memory Slurm gave its job %d: %s", job, error)
        return None


def fits(granted_gib: int, spec: JobSpec, jobs: Sequence[JobSpec]) -> None:
    """The runs of a Slurm job ask for no more together than Slurm gave it, as Slurm goes by that:
    for accounts, fair share, and what else fits on the node. `jobs`: that have not ended.

    Raises CarmaError."""
    taken = sum(_gpu_memory_mib(one) for one in jobs if one.allocation == spec.allocation)
    asked = math.ceil((taken + _gpu_memory_mib(spec)) / 1024)
    if 0 < granted_gib >= asked:
        return
    runs = "its runs here ask" if taken else "this run asks"
    assert spec.allocation
    raise CarmaError(
        f"Slurm gave job {spec.allocation.id} {granted_gib} GiB of GPU memory, and {runs}"
        f" for {asked or 'some'}",
        f"Ask Slurm for what they need together: --gres=gpumem:{asked or 'GIB'}.",
    )


def _gpu_memory_mib(spec: JobSpec) -> int:
    return spec.gpus * (spec.memory_mib or 0)


def job_of(pid: int) -> int | None:
    """The Slurm job that this process is part of; None: of none.

    By its cgroup, or, where that does not say, by a slurmstepd of root's among its ancestors: not
    by its environment, as whoever is left to Slurm is not moved into CARMA's unit. Of a process
    that is not root's through and through, not even the title is read: it could make that hang.
    """
    try:
        if (job := job_in(read_file(f"/proc/{pid}/cgroup"))) is not None:
            return job
        while pid > 1 and (stat := process_stat(pid)):
            pid = stat[0]
            if uids(pid) not in ({0}, {os.geteuid()}):
                continue
            if found := _SLURMSTEPD.match(read_file(f"/proc/{pid}/cmdline")):
                return int(found[1])
    except OSError:
        pass  # it has ended
    return None


def job_in(cgroups: bytes) -> int | None:
    """Likewise, of a process with these cgroups, as in /proc/PID/cgroup."""
    found = _CGROUP.search(cgroups)
    return int(found[1]) if found else None
