"""GPUs, from CARMA's values to the wire."""

from __future__ import annotations

from carmad.api.phrases import phrase
from carmad.api.render import label, labelled
from carmad.api.responses.gpus import GpuOut, RiskOut
from carmad.core.gpuview import GpuView
from carmad.core.scene import Scene, memory_by_job
from carmad.words import clock


def gpu_out(view: GpuView, scene: Scene, owner: tuple[int, str], see_all: bool) -> GpuOut:
    gpu, sample, score = view.gpu, view.sample, view.score
    state, detail = gpu_state(view, scene)
    risk: RiskOut = {
        "sm_active": _fraction(score.sm_active),
        "sm_occupancy": _fraction(score.sm_occupancy),
        "dram_active": _fraction(score.dram_active),
        "sm_source": score.sm_source,
        "risky": score.risky(scene.view.settings.risk),
        "samples": score.samples,
    }
    residents = {job.id for job in view.residents}
    held = memory_by_job((view,))
    return {
        "id": gpu.id,
        "index": gpu.index,
        "name": gpu.name,
        "mig": gpu.is_mig,
        "parent": gpu.parent,
        "island": gpu.island,
        "memory_mib": gpu.memory_mib,
        "memory_used_mib": sample.memory_used_mib if sample else None,
        "memory_free_mib": sample.memory_free_mib if sample else None,
        "admissible_free_mib": max(0, view.free_mib),
        "sm_active": _fraction(sample.sm_active) if sample else None,
        "sm_occupancy": _fraction(sample.sm_occupancy) if sample else None,
        "dram_active": _fraction(sample.dram_active) if sample else None,
        "utilization": _fraction(sample.utilization) if sample else None,
        "power_w": sample.power_w if sample else None,
        "energy_j": sample.energy_mj / 1000 if sample and sample.energy_mj is not None else None,
        "temperature_c": sample.temperature_c if sample else None,
        "risk": risk,
        "state": state,
        "state_detail": detail,
        "jobs": [
            {
                "id": job.id,
                "label": label(job),
                "user": job.spec.user,
                "name": job.spec.name if see_all or job.spec.owner == owner else "-",
                "memory_mib": held.get(job.id),
                "mode": job.mode.value if job.mode else None,
            }
            for job in view.residents
        ],
        "outsiders": [
            {
                "pid": process.pid,
                "user": process.user,
                "command": process.command,
                "memory_mib": process.memory_mib,
            }
            for process in (sample.processes if sample else ())
            if process.job is None or process.job not in residents
        ],
    }


def gpu_state(gpu: GpuView, scene: Scene) -> tuple[str, str]:
    """The first thing that keeps jobs off this GPU, the worst before the passing ones."""
    sample = gpu.sample
    if sample is not None and sample.fault:
        return "faulty", sample.fault
    if gpu.drained:
        return "drained", gpu.drained
    if gpu.stale:
        return "stale", phrase(gpu.stale)
    first = next(iter(gpu.reserved), None)
    if first and not first.in_s:
        return "reserved", f"for {first.of.whose} until {clock(first.ends_at)}"
    if gpu.settling:
        return "settling", phrase(labelled(gpu.settling, scene.live))
    return "ok", f"reserved for {first.of.whose} from {clock(first.starts_at)}" if first else ""


def _fraction(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
