"""The preconditions under which a policy lets a job share a GPU."""

from __future__ import annotations

from carmad.plugin import Demand, GpuView, Preconditions, Reason, Settings, idle
from policies.rules import Filter
from policies.views import margin_mib


def preconditions(policy: str, settings: Settings) -> tuple[Filter, ...]:
    """The filters that `policy`'s settings enable (CARMA paper, 3.3 to 3.6)."""
    chosen = settings.preconditions_for(policy)
    filters = [fits_memory(chosen, settings)]
    if chosen.min_free_mib > 0:
        filters.append(min_free(chosen, settings))
    if chosen.utilization:
        filters.append(not_risky(settings))
    return tuple(filters)


def only_idle(settings: Settings) -> Filter:
    """Neither jobs nor external processes use the GPU."""

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        return idle(gpu, settings)

    return refuse


def fits_memory(conditions: Preconditions, settings: Settings) -> Filter:
    """The estimate, if there is one, fits into the free memory.

    An estimate that is not declared does not keep a job off an idle GPU: it may be too high, and no
    other GPU would have more room.
    """

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        if wanted.estimate is None:
            return None
        unused = idle(gpu, settings) is None
        if unused and not wanted.estimate.firm:
            return None
        margin = 0 if unused else margin_mib(wanted.retry, conditions)
        need = wanted.estimate.safe_mib + margin
        return Reason("memory", need, gpu.free_mib, "MiB") if need > gpu.free_mib else None

    return refuse


def min_free(conditions: Preconditions, settings: Settings) -> Filter:
    """At least `min_free_mib` is free (2 GB by default), to protect jobs without estimates."""

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        need = conditions.min_free_mib
        if wanted.estimate is None and wanted.retry is not None and idle(gpu, settings):
            need += wanted.retry.margin_mib
        return Reason("min_free", need, gpu.free_mib, "MiB") if gpu.free_mib < need else None

    return refuse


def not_risky(settings: Settings) -> Filter:
    """The GPU is not saturated (CARMA paper, 3.3), nor would two jobs take turns all the time that
    each keep a GPU busy. An idle GPU is no risk, whatever its load was in the last half minute."""
    limits = settings.risk

    def refuse(wanted: Demand, gpu: GpuView) -> Reason | None:
        if idle(gpu, settings) is None:
            return None
        score = gpu.score
        if not score.risky(limits):
            if not (wanted.is_busy and score.is_busy(limits)):
                return None
            return Reason("risk", limits.utilization, score.utilization or 0.0, "utilization")
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
