"""Meters the usage of jobs from samples: peak memory, energy, SM activity."""

from __future__ import annotations

from collections.abc import Mapping

from carmad.core.types import GpuSample, Job, JobId, Usage


def metered(
    usage: Mapping[JobId, Usage],
    residents: tuple[Job, ...],
    before: GpuSample | None,
    sample: GpuSample,
    max_gap_s: float,
) -> dict[JobId, Usage]:
    """The usage of the `residents` of one GPU after `sample`; `before` is the previous sample.

    A GPU's energy is split evenly: the driver counts it per GPU, never per process. Nothing is
    counted across a gap in the samples.
    """
    seconds = sample.at - before.at if before else 0.0
    if not 0 < seconds <= max_gap_s:
        seconds = 0.0
    joules = energy_j(before, sample, seconds)
    busy = sample.sm_active if sample.sm_active is not None else sample.utilization or 0.0
    changed = {}
    for job in residents:
        held = sum(p.memory_mib or 0 for p in sample.processes if p.job == job.id)
        old = usage.get(job.id, job.usage)
        changed[job.id] = Usage(
            peak_mib=max(old.peak_mib, held),
            energy_j=old.energy_j + joules / len(residents),
            sm_seconds=old.sm_seconds + busy * seconds,
            gpu_seconds=old.gpu_seconds + seconds,
        )
    return changed


def energy_j(before: GpuSample | None, sample: GpuSample, seconds: float) -> float:
    """Joules between two samples: the counter's difference, or power × time after a reset."""
    if before is None or seconds == 0:
        return 0.0
    if sample.energy_mj is not None and before.energy_mj is not None:
        used = sample.energy_mj - before.energy_mj
        if used >= 0:
            return used / 1000
    return (sample.power_w or 0.0) * seconds
