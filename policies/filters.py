"""The preconditions that a policy may ask of a GPU before it lets a job share it."""

from __future__ import annotations

from carmad.plugin import Demand, GpuView, Preconditions, Reason, Settings, idle
from policies.memory import margin_mib
from policies.ranked import Filter


def preconditions(policy: str, settings: Settings) -> tuple[Filter, ...]:
    """The filters that `policy`'s settings switch on (CARMA paper, 3.3 to 3.6)."""
    chosen = settings.preconditions_for(policy)
    filters = [fits_memory(chosen)]
    if chosen.min_free_mib > 0:
        filters.append(min_free(chosen))
    if chosen.utilization:
        filters.append(not_risky(settings))
    return tuple(filters)


def unoccupied(settings: Settings) -> Filter:
    """Nobody is on the GPU: neither a job nor an outsider worth the name."""

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        return idle(gpu, settings)

    return refuse


def fits_memory(conditions: Preconditions) -> Filter:
    """The estimate, if there is one, fits what is free.

    A mere guess does not keep a job off a GPU that is empty anyway.
    """

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        if wanted.estimate is None or (not wanted.estimate.firm and _empty(gpu)):
            return None
        margin = 0 if _empty(gpu) else margin_mib(wanted.retry, conditions)
        need = wanted.estimate.safe_mib + margin
        return Reason("memory", need, gpu.free_mib, "MiB") if need > gpu.free_mib else None

    return refuse


def min_free(conditions: Preconditions) -> Filter:
    """At least so much memory is free (2 GB by default): what no estimate protects."""

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        need = conditions.min_free_mib
        if wanted.estimate is None and wanted.retry is not None and not _empty(gpu):
            need += wanted.retry.margin_mib
        return Reason("min_free", need, gpu.free_mib, "MiB") if gpu.free_mib < need else None

    return refuse


def not_risky(settings: Settings) -> Filter:
    """The GPU is not saturated already (CARMA paper, 3.3). One that nobody is on any longer is
    no risk, whatever its last half minute was like."""
    limits = settings.risk

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        if idle(gpu, settings) is None or not gpu.recent.risky(limits):
            return None
        score = gpu.score
        parts = [
            f"{name} {value:.2f} (limit {limit:.2f})"
            for name, value, limit in (
                ("SMOCC", score.sm_occupancy, limits.sm_occupancy),
                ("DRAMA", score.dram_active, limits.dram_active),
            )
            if value is not None and value >= limit
        ]
        source = "" if score.sm_source == "sm_active" else "utilisation stands in for SMACT"
        detail = "; ".join([*parts, *([source] if source else [])])
        return Reason("risk", limits.sm_active, score.sm_active or 0.0, "SMACT", detail)

    return refuse


def _empty(gpu: GpuView) -> bool:
    return not gpu.residents
