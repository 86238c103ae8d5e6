"""Generates traces like those of two production clusters, for a cluster of any size.

Jobs per month, mean durations and numbers of GPUs are Lucid's (table 2). What it does not print was
measured on public data: for Philly on the trace prepared by the Sia artifact, for Venus on the
submission counts in the Lucid artifact. Neither jobs nor models are named.
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from carmad.sim.task import Task, Trace
from carmad.sim.traces.draws import log_normal, scaled, strata
from carmad.sim.traces.rows import ordered

_DAY_S = 86_400.0
_SIGMA = 2.0  # of the logarithm of durations: Philly's; that of Venus is not published
_USERS = 15  # the number of virtual clusters in that trace of Philly


@dataclass(frozen=True, slots=True)
class _Size:
    gpus: int
    share: float  # of all jobs
    longer: float  # its mean duration relative to that of the smallest jobs


@dataclass(frozen=True, slots=True)
class _Cluster:
    name: str
    gpus: int
    jobs_a_day: float
    mean_s: float
    sizes: tuple[_Size, ...]
    hours: tuple[float, ...]  # submissions in each hour of the day, relative to the mean


_PHILLY = _Cluster(
    name="philly",
    gpus=864,
    jobs_a_day=12_389 / 31,  # October 2017
    mean_s=25_533,
    sizes=(
        _Size(1, 0.932, 1.0),
        _Size(2, 0.022, 3.7),
        _Size(4, 0.023, 9.5),
        _Size(8, 0.020, 15.6),
        _Size(16, 0.003, 11.5),
    ),
    hours=(
        *(1.27, 0.98, 1.12, 1.10, 0.70, 1.15, 1.67, 2.09, 1.11, 1.01, 1.02, 0.87),
        *(0.75, 0.70, 0.64, 0.65, 0.88, 0.67, 0.80, 0.73, 1.02, 0.92, 1.13, 1.01),
    ),
)
# The shares give the mean of 6.7 GPUs in the counts and Lucid's "over 95 % within 8 GPUs" (2.2).
# How much longer the large jobs are is from Lucid's table 5 (FIFO: JCT less queueing).
_VENUS = _Cluster(
    name="venus",
    gpus=1080,
    jobs_a_day=23_859 / 30,  # September 2020
    mean_s=5_419,
    sizes=(
        _Size(1, 0.50, 1.0),
        _Size(2, 0.06, 1.0),
        _Size(4, 0.08, 1.0),
        _Size(8, 0.31, 1.0),
        _Size(16, 0.015, 1.17),
        _Size(32, 0.010, 1.17),
        _Size(64, 0.008, 1.17),
        _Size(128, 0.017, 1.17),
    ),
    hours=(
        *(0.90, 0.66, 0.60, 0.38, 0.27, 0.21, 0.19, 0.22, 0.37, 0.80, 1.29, 1.47),
        *(1.16, 1.30, 1.56, 1.66, 1.73, 1.73, 1.28, 1.31, 1.34, 1.36, 1.15, 1.04),
    ),
)


def philly(seed: int = 0, tasks: int = 240, gpus: int = _PHILLY.gpus) -> Trace:
    return _like(_PHILLY, seed, tasks, gpus)


def venus(seed: int = 0, tasks: int = 240, gpus: int = _VENUS.gpus) -> Trace:
    return _like(_VENUS, seed, tasks, gpus)


def _like(cluster: _Cluster, seed: int, tasks: int, gpus: int) -> Trace:
    """Scaled to `gpus` GPUs: the same number of jobs per GPU, none asking for more than all."""
    dice = Random(f"{cluster.name}/{seed}")
    sizes = [_size(cluster, share) for share in strata(dice, tasks)]
    spread = log_normal(strata(dice, tasks), _SIGMA)
    durations = scaled(
        (size.longer * factor for size, factor in zip(sizes, spread, strict=True)), cluster.mean_s
    )
    gaps = [-math.log(1 - share) for share in strata(dice, tasks)]
    per_job_s = _DAY_S / cluster.jobs_a_day * cluster.gpus / gpus
    moments = accumulate(scaled(gaps, per_job_s))
    users = dice.choices(range(_USERS), [1 / (rank + 1) for rank in range(_USERS)], k=tasks)
    return ordered(
        cluster.name,
        (
            Task(
                name="",
                submit_s=round(_by_clock(moment, cluster.hours)),
                duration_s=max(1.0, round(duration, 1)),
                gpus=min(size.gpus, gpus),
                user=f"user{user + 1}",
            )
            for moment, duration, size, user in zip(moments, durations, sizes, users, strict=True)
        ),
    )


def _size(cluster: _Cluster, share: float) -> _Size:
    ends = list(accumulate(size.share for size in cluster.sizes))
    return cluster.sizes[min(bisect(ends, share), len(ends) - 1)]


def _by_clock(moment_s: float, hours: tuple[float, ...]) -> float:
    """The time by which `moment_s` seconds' worth of submissions have come, given `hours`."""
    days, rest_s = divmod(moment_s, _DAY_S)
    ends = [0.0, *accumulate(hours)]
    part = rest_s / _DAY_S * ends[-1]
    hour = min(bisect(ends, part), len(hours)) - 1
    return days * _DAY_S + (hour + (part - ends[hour]) / hours[hour]) * 3600
