"""Generates traces for one server with the statistics printed in papers, and a day in a lab."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate
from random import Random

from carmad.sim.catalogue import PROFILES, Profile, load_of
from carmad.sim.task import Task, Trace
from carmad.sim.traces import clusters
from carmad.sim.traces.draws import Points, log_normal, quantile, scaled, strata
from carmad.sim.traces.rows import configuration, ordered

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
    durations = scaled(log_normal(strata(dice, tasks), sigma=1.0), mean=494)
    moments = _cuckoo_moments(dice, tasks)
    return ordered(
        "cuckoo",
        [_cuckoo_task(dice, *both) for both in zip(moments, durations, strict=True)],
    )


GENERATORS: dict[str, Callable[..., Trace]] = {
    "carma-1": carma_1,
    "carma-2": carma_2,
    "lab": lab,
    "cuckoo": cuckoo,
    "philly": clusters.philly,
    "venus": clusters.venus,
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
    return ordered(name, [_of(dice, *both) for both in zip(profiles, moments, strict=True)])


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
