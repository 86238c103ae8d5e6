"""What the demo's two replays come to, in one sentence. Pure.

Times and crashes are the simulator's figures for the daemons' histories.
"""

from __future__ import annotations

from carmad.sim.metrics import Figures


def sentence(alone: Figures, shared: Figures) -> str:
    """What sharing the GPUs gave; `alone`: of the same jobs, each with a GPU of its own."""
    end, end_alone = (figures.makespan_s or 0.0 for figures in (shared, alone))
    mean, mean_alone = (figures.jct.mean if figures.jct else 0.0 for figures in (shared, alone))
    return (
        f"Sharing GPUs, CARMA finished the same {shared.jobs} jobs in {end:.0f} s instead of "
        f"{end_alone:.0f} s ({_change(end, end_alone)}); a job waited and ran for "
        f"{mean:.1f} s on average instead of {mean_alone:.1f} s ({_change(mean, mean_alone)}); "
        f"{_lost(shared)}."
    )


def _change(now: float, before: float) -> str:
    share = now / before - 1 if before else 0.0
    return f"{100 * abs(share):.0f} % {'less' if share < 0 else 'more'}"


def _lost(figures: Figures) -> str:
    if lost := figures.jobs - figures.finished:
        return f"{lost} of them failed"
    if not figures.oom_crashes:
        return "none failed"
    times = "once" if figures.oom_crashes == 1 else f"{figures.oom_crashes} times"
    return f"GPU memory ran out {times}, but no job was lost"
