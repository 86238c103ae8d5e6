"""Generates traces with the statistics that papers print, for one server or a cluster of any size,
and a day in a lab. Draws keep a distribution's statistics even in a small sample.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from random import Random
from statistics import NormalDist

from carma_simulator.catalogue import PROFILES, Profile, load_of
from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.rows import configuration, in_order

Points = tuple[tuple[float, float], ...]  # of a quantile function: a share, 0–1, and its value

# Durations of whole jobs are published in CARMA's table 4.
_TABLE_4 = [profile for profile in PROFILES if profile.duration_s is not None]
_LIGHT_SHARE, _TWO_GPUS_SHARE = 0.3, 0.1  # CARMA paper, 4.1

# Seconds between submissions (CARMA paper, 4.1). Printed are the minimum, the median, the 95th
# percentile, the maximum and the mean, 229.45; the two quartiles are chosen to meet that.
_GAPS_1: Points = ((0, 1), (0.25, 60), (0.5, 182.5), (0.75, 350.33), (0.95, 599), (1, 600))
# The same of the second trace, with a mean of 310. Its histogram is described as bimodal: here a
# third of the gaps are those of releases every 10 minutes. The first quartile meets the mean.
_GAPS_2: Points = (
    *((0, 3), (0.25, 86.7), (0.5, 275.5), (0.65, 330), (0.68, 598)),
    *((0.95, 601), (0.98, 602), (1, 816)),
)
_PERIODIC_S = 590.0  # gaps from here on are those of the releases

_LAB_GAP_S = 900.0
_USERS = ("ada", "ben", "chloe", "dan", "emma")  # the first submits most

# Clusters: jobs per month, mean durations and numbers of GPUs are Lucid's (table 2). What it does
# not print was measured on public data: for Philly on the trace prepared by the Sia artifact, for
# Venus on the submission counts in the Lucid artifact. Neither jobs nor models are named.
_DAY_S = 86_400.0
_SIGMA = 2.0  # of the logarithm of durations: Philly's; that of Venus is not published
_CLUSTER_USERS = 15  # the number of virtual clusters in that trace of Philly


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


def carma_1(seed: int = 0, tasks: int = 60) -> Trace:
    """Like the first trace of the CARMA evaluation."""
    dice = Random(f"carma-1/{seed}")
    return _server("carma-1", dice, _gaps(dice, _GAPS_1, tasks - 1))


def carma_2(seed: int = 0, tasks: int = 60) -> Trace:
    """Like the second one: periodic releases first, a dense burst later."""
    dice = Random(f"carma-2/{seed}")
    gaps = _gaps(dice, _GAPS_2, tasks - 1)
    gaps.sort(key=lambda gap: (gap < _PERIODIC_S) + dice.uniform(0, 1.2))
    return _server("carma-2", dice, gaps)


def lab(seed: int = 0, tasks: int = 40) -> Trace:
    """A working day: CARMA's mix of tasks at random times, one every 15 minutes on average."""
    dice = Random(f"lab/{seed}")
    gaps = [-_LAB_GAP_S * math.log(1 - share) for share in strata(dice, tasks - 1)]
    return _server("lab", dice, gaps)


def cuckoo(seed: int = 0, tasks: int = 521) -> Trace:
    """Like the workload of the Cuckoo evaluation (4.1, table 8), the one with deadlines.

    Its durations are not published. Here they are log-normal with a mean of 494 s: with deadlines
    of 8 durations and no sharing, half the jobs met theirs at a mean JCT of 3953 s (table 1).
    """
    dice = Random(f"cuckoo/{seed}")
    durations = scale(log_normal(strata(dice, tasks), sigma=1.0), mean=494)
    moments = _cuckoo_moments(dice, tasks)
    return in_order(
        "cuckoo",
        [_cuckoo_task(dice, *both) for both in zip(moments, durations, strict=True)],
    )


def philly(seed: int = 0, tasks: int = 240, gpus: int = _PHILLY.gpus) -> Trace:
    return _like(_PHILLY, seed, tasks, gpus)


def venus(seed: int = 0, tasks: int = 240, gpus: int = _VENUS.gpus) -> Trace:
    return _like(_VENUS, seed, tasks, gpus)


GENERATORS: dict[str, Callable[..., Trace]] = {
    "carma-1": carma_1,
    "carma-2": carma_2,
    "lab": lab,
    "cuckoo": cuckoo,
    "philly": philly,
    "venus": venus,
}


def _gaps(dice: Random, points: Points, count: int) -> list[float]:
    """Gaps in random order, including the smallest and the largest possible."""
    shares = strata(dice, count)
    if count > 1:
        shares[shares.index(min(shares))] = 0.0
        shares[shares.index(max(shares))] = 1.0
    return [quantile(points, share) for share in shares]


def _server(name: str, dice: Random, gaps: Sequence[float]) -> Trace:
    """Tasks of Table 4, in whole seconds since the first."""
    moments = accumulate((round(gap) for gap in gaps), initial=0)
    profiles = _mix(dice, len(gaps) + 1)
    return in_order(name, [_of(dice, *both) for both in zip(profiles, moments, strict=True)])


def _mix(dice: Random, count: int) -> list[Profile]:
    light, two = round(_LIGHT_SHARE * count), round(_TWO_GPUS_SHARE * count)
    of_light = [profile for profile in _TABLE_4 if profile.size == "light"]
    of_two = [profile for profile in _TABLE_4 if profile.gpus == 2]
    others = [profile for profile in _TABLE_4 if profile.size != "light" and profile.gpus == 1]
    drawn = dice.choices(of_light, k=light) + dice.choices(of_two, k=two)
    drawn += dice.choices(others, k=count - light - two)
    dice.shuffle(drawn)
    return drawn


def _of(dice: Random, profile: Profile, submit_s: float) -> Task:
    assert profile.duration_s is not None
    [user] = dice.choices(_USERS, [1 / (rank + 1) for rank in range(len(_USERS))])
    return Task(
        name=configuration(profile.load.model, profile.load.batch_size),
        submit_s=submit_s,
        duration_s=profile.duration_s,
        gpus=profile.gpus,
        user=user,
        load=profile.load,
        reference="A100-40GB",
    )


_CUCKOO_MODELS = (
    *(("A2C", 8), ("A2C", 16), ("A2C", 32), ("DQN", 8), ("DQN", 16), ("DQN", 32)),
    *(("BERT", 2), ("BERT", 4), ("BERT", 8), ("GPT-2", 2), ("GPT-2", 4)),
    *(("VGG19", 8), ("VGG19", 16), ("VGG19", 32), ("VGG16", 8), ("VGG16", 16), ("VGG16", 32)),
    *(("ResNet18", 16), ("ResNet18", 32), ("ResNet18", 64)),
    *(("ResNet50", 16), ("ResNet50", 32), ("ResNet50", 64)),
)


def _cuckoo_moments(dice: Random, count: int) -> list[float]:
    """Of 521, 100 in the first 1000 s, then 10 to 40 in each of 29 times 1000 s."""
    first = round(count * 100 / 521)
    weights = [10 + 30 * dice.random() ** 5.6 for _ in range(29)]  # 14.5 on average, as 421 / 29
    ends = [0.0, *(end / sum(weights) for end in accumulate(weights))]
    later: Points = tuple(zip([*ends[:-1], 1.0], range(1000, 31_000, 1000), strict=True))
    moments = [1000 * share for share in strata(dice, first)]
    moments += [quantile(later, share) for share in strata(dice, count - first)]
    return sorted(map(round, moments))


def _cuckoo_task(dice: Random, submit_s: float, duration_s: float) -> Task:
    model, batch_size = dice.choice(_CUCKOO_MODELS)
    return Task(
        name=configuration(model, batch_size),
        submit_s=submit_s,
        duration_s=round(duration_s, 1),
        gpus=2,
        load=load_of(model, batch_size),
        reference="A100-80GB",  # as its A800, the fastest there
        deadline_s=round(duration_s * max(1.0, dice.gauss(8, 2))),
    )


def _like(cluster: _Cluster, seed: int, tasks: int, gpus: int) -> Trace:
    """Scaled to `gpus` GPUs: the same number of jobs per GPU, none asking for more than all."""
    dice = Random(f"{cluster.name}/{seed}")
    sizes = [_size(cluster, share) for share in strata(dice, tasks)]
    spread = log_normal(strata(dice, tasks), _SIGMA)
    durations = scale(
        (size.longer * factor for size, factor in zip(sizes, spread, strict=True)), cluster.mean_s
    )
    gaps = [-math.log(1 - share) for share in strata(dice, tasks)]
    per_job_s = _DAY_S / cluster.jobs_a_day * cluster.gpus / gpus
    moments = accumulate(scale(gaps, per_job_s))
    users = dice.choices(
        range(_CLUSTER_USERS), [1 / (rank + 1) for rank in range(_CLUSTER_USERS)], k=tasks
    )
    return in_order(
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


def strata(dice: Random, count: int) -> list[float]:
    """One number from each of `count` equal parts of 0–1, in random order."""
    shares = [(place + dice.random()) / count for place in range(count)]
    dice.shuffle(shares)
    return shares


def quantile(points: Points, share: float) -> float:
    """Interpolated linearly between `points`, which begin at 0 and end at 1."""
    for (low, smaller), (high, larger) in pairwise(points):
        if share <= high:
            return smaller + (larger - smaller) * (share - low) / (high - low)
    raise ValueError(f"no share: {share}")


def log_normal(shares: Iterable[float], sigma: float) -> list[float]:
    """The quantiles of the log-normal distribution whose median is 1."""
    normal = NormalDist(sigma=sigma)
    return [math.exp(normal.inv_cdf(share)) for share in shares]


def scale(values: Iterable[float], mean: float) -> list[float]:
    values = list(values)
    factor = mean * len(values) / sum(values)
    return [value * factor for value in values]
