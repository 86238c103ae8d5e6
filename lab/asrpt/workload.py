"""What A-SRPT's benchmarks run: Philly's jobs, submitted as often as PAI's, recurring as these do.

The paper's trace is Alibaba PAI's ("MLaaS in the Wild", NSDI '22), of 758,223 jobs in two months
after cleaning, which is not at hand. What is made instead:

- **Jobs** are Philly's, one after the other as often as it takes: arrivals, durations, GPUs and
  virtual clusters are its own. Time between arrivals is shrunk, alike for all, to PAI's mean of
  7 s (62 days for 758,223 jobs), and durations to PAI's mean of 5,039 s: that is the paper's load,
  the jobs of 6,000 GPUs on 2,000. A `part` of the cluster has as large a part of the jobs.
- **Groups** are jobs of one user with one demand for GPUs. Their sizes follow a power law whose
  exponent is such that 65 % of the jobs are of a group of five or more, as PAI's; nothing else is
  printed of PAI's sizes. Runs of a group are anywhere in the two months.
- **Durations** in a group: 69.3 % of Philly's jobs passed, the others were killed or failed (Philly
  paper, ATC '19, section 4: 30.7 %). Runs that pass take what their group takes, but for a
  log-normal factor of σ = SPREAD: GPUs of one kind differ by 8 % on average ("Not All GPUs Are
  Created Equal", SC '22; which is not said to be a σ). How much runs differ beyond that, and how
  many of PAI's passed, is printed nowhere, so `prediction` varies both. Runs that do
  not pass end at some moment before. No duration is drawn, so that all remain Philly's: jobs are
  put in the order of their duration times such a factor, the shorter ones more likely not to have
  passed; those that did are cut into groups, the others are dealt to groups of longer ones.
- **Users**: 1,300 as PAI's, to each virtual cluster as many as it has jobs for, busy as 1/rank.
- **Models**: each group draws one and its layout (`layouts`).

As in the paper the first 80 % of the two months are there to learn from, and simulated are
consecutive jobs of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from random import Random
from typing import Any

import numpy as np

from carma_simulator.experiment import Task, Trace
from carma_simulator.traces.public import philly
from carma_simulator.workload import uid_of
from carmad.config import Links
from carmad.core.jobs.layout import Layout
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.spec import JobSpec
from carmad.learning.models import Lookup
from carmad.learning.training import forest
from lab.asrpt.layouts import drawn
from lab.data import DATA
from policies.asrpt.heavy_edge import extremes

PHILLY = DATA / "philly" / "philly.csv"

JOBS = 758_223  # of the whole trace, in so many days
DAYS = 62
MEAN_S = 5_039.0  # PAI's duration
PAST = 0.8  # of the jobs, to learn from
USERS = 1_300
PASSED = 0.693
SPREAD = 0.08
EXPONENT, LARGEST = 2.1, 1_000  # of the sizes of groups: P(n) ~ n to the power of -EXPONENT
RECURS = 5  # runs, from which on a job counts as recurring

SERVERS, SIZE = 250, 8  # the paper's cluster, of 8 GPUs a server
LINKS = Links(within_mib_s=300e9 / (1 << 20), between_mib_s=10e9 / 8 / (1 << 20))

Array = Any  # one-dimensional, of numpy's


@dataclass(frozen=True)
class Jobs:
    """Columns with a value for each job, in the order of their submission."""

    at_s: Array
    duration_s: Array
    gpus: Array
    group: Array  # an index into `users`
    users: tuple[str, ...]  # of each group
    demands: tuple[int, ...]  # GPUs of each group
    seed: int

    @property
    def known(self) -> int:
        """How many there are to learn from."""
        return int(PAST * len(self.at_s))

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """What CARMA calls each group."""
        return tuple(group(self._spec(g)) for g in range(len(self.users)))

    def name(self, g: int) -> str:
        return f"{self.model(g)[0]}-{g}"

    def model(self, g: int) -> tuple[str, Layout]:
        return drawn(self.demands[g], Random(f"{self.seed}/{g}"))

    def _spec(self, g: int) -> JobSpec:
        """As the simulator submits it."""
        name, user = self.name(g), self.users[g]
        uid = uid_of(user)
        return JobSpec(
            argv=(name,), user=user, uid=uid, gid=uid, cwd="/", name=name, gpus=self.demands[g]
        )


def made(
    jobs: int = 75_000,
    seed: int = 0,
    single_gpu: float | None = None,
    layouts: bool = True,
    part: int = 1,
) -> Trace:
    """So many consecutive jobs, from a place that `seed` draws, as in the paper. `single_gpu`:
    their share; None for Philly's 93 %. Without `layouts` nothing is known of how jobs are spread
    over their GPUs."""
    all_jobs = whole(0, single_gpu, part=part)
    first = all_jobs.known
    first += Random(seed).randrange(len(all_jobs.at_s) - first - jobs + 1)
    begin_s = float(all_jobs.at_s[first])
    tasks = []
    for n in range(first, first + jobs):
        g = int(all_jobs.group[n])
        model, layout = all_jobs.model(g)
        tasks.append(
            Task(
                name=f"{model}-{g}",
                submit_s=float(all_jobs.at_s[n]) - begin_s,
                duration_s=float(all_jobs.duration_s[n]),
                gpus=all_jobs.demands[g],
                user=all_jobs.users[g],
                layout=layout if layouts else None,
                iteration_s=extremes(layout, LINKS, SIZE).fastest_s if layouts else 0.0,
            )
        )
    share = "" if single_gpu is None else f"-{100 * single_gpu:.0f}"
    return Trace(f"asrpt-{jobs}{share}", tuple(tasks))


def learned(
    single_gpu: float | None = None, how: forest.Learner = forest.grow, part: int = 1
) -> Lookup:
    """What the jobs before those of `made` teach, as the predictor `forest` asks for it under the
    name `forest`. `how`: also `forest.means` or `forest.medians`, for the paper's comparison."""
    jobs = whole(0, single_gpu, part=part)
    known = slice(jobs.known)
    groups = [jobs.ids[g] for g in jobs.group[known]]
    users = [jobs.users[g] for g in jobs.group[known]]
    seconds = how(groups, users, jobs.duration_s[known].tolist())
    return Lookup(forest.ABOUT, "Philly, recurring as PAI", seconds, len(groups), 0.0)


def load(trace: Trace, gpus: int = SERVERS * SIZE) -> float:
    """The GPU time that jobs ask for, of what there is until the last one is submitted."""
    asked = sum(task.gpus * task.duration_s for task in trace.tasks)
    return asked / (gpus * trace.tasks[-1].submit_s)


@cache
def whole(
    seed: int = 0,
    single_gpu: float | None = None,
    jobs: int = JOBS,
    part: int = 1,
    spread: float = SPREAD,
    passed: float = PASSED,
) -> Jobs:
    """The two months; with `part`, of as large a part of the cluster."""
    random = np.random.default_rng(seed)
    at_s, duration_s, gpus, cluster = _philly(jobs // part)
    at_s = at_s * part
    if single_gpu is not None:
        several = gpus[gpus > 1]
        drawn_gpus = random.choice(several, len(gpus))
        gpus = np.where(random.random(len(gpus)) < single_gpu, 1, drawn_gpus)
    kinds, kind = np.unique(np.stack([cluster, gpus]), axis=1, return_inverse=True)
    groups = np.empty(len(gpus), dtype=np.int64)
    demands: list[int] = []
    clusters: list[int] = []
    for k, (c, demand) in enumerate(kinds.T):
        members = np.flatnonzero(kind.reshape(-1) == k)
        found = _grouped(duration_s[members], spread, passed, random)
        groups[members] = found + len(demands)
        count = int(found.max()) + 1
        demands += [int(demand)] * count
        clusters += [int(c)] * count
    users = _users(np.array(clusters), cluster, random)
    return Jobs(at_s, duration_s, gpus, groups, users, tuple(demands), seed)


def _philly(jobs: int) -> tuple[Array, Array, Array, Array]:
    """Submission (s), duration (s), GPUs and number of the virtual cluster of each job."""
    tasks = philly(PHILLY).tasks
    times = np.array([task.submit_s for task in tasks])
    mean_s = times[-1] / len(tasks)
    passes = -(-jobs // len(tasks))
    again = (np.arange(passes) * (times[-1] + mean_s))[:, None]
    at_s = (times + again).reshape(-1)[:jobs] * (DAYS * 86_400 / JOBS / mean_s)
    _, cluster = np.unique([task.user for task in tasks], return_inverse=True)
    columns = ([task.duration_s for task in tasks], [task.gpus for task in tasks], cluster)
    duration_s, gpus, clusters = (np.tile(column, passes)[:jobs] for column in columns)
    return at_s, duration_s * (MEAN_S / duration_s.mean()), gpus, clusters


def _grouped(duration_s: Array, spread: float, passed: float, random: Any) -> Array:
    """The group of each of these jobs, which are alike but for their duration."""
    count = len(duration_s)
    slots = np.repeat(np.arange(count), _sizes(count, random))[:count]  # runs of group after group
    noisy = np.log(np.maximum(1.0, duration_s)) + random.normal(0, spread, count)
    order = np.argsort(noisy)
    cut_short = random.random(count) < 2 * (1 - passed) * (1 - np.arange(count) / count)
    places = random.permutation(count)
    for_passed = np.sort(places[cut_short.sum() :])
    for_others = np.sort(places[: cut_short.sum()])
    found = np.empty(count, dtype=np.int64)
    found[order[~cut_short]] = slots[for_passed]
    # What the group of each of these places takes: as the run that passed and stands next to it.
    beside = np.searchsorted(for_passed, for_others)
    takes = np.append(noisy[order[~cut_short]], np.inf)[beside]
    found[_dealt(order[cut_short], noisy, takes, random)] = slots[for_others]
    return found


def _dealt(jobs: Array, noisy: Array, takes: Array, random: Any) -> list[int]:
    """A job for each place, both in ascending order: any that is shorter than what the group of the
    place takes, else the shortest that is left."""
    waiting: list[int] = []
    found = []
    after = 0
    for draw, most in zip(random.random(len(jobs)), takes, strict=True):
        while after < len(jobs) and (noisy[jobs[after]] < most or not waiting):
            waiting.append(int(jobs[after]))
            after += 1
        n = int(draw * len(waiting))
        waiting[n], waiting[-1] = waiting[-1], waiting[n]
        found.append(waiting.pop())
    return found


def _sizes(count: int, random: Any) -> Array:
    sizes = np.arange(1, LARGEST + 1)
    likely = sizes**-EXPONENT
    return random.choice(sizes, count, p=likely / likely.sum())


def _users(clusters: Array, of_jobs: Array, random: Any) -> tuple[str, ...]:
    """Of each group, by the number of its virtual cluster."""
    users = np.empty(len(clusters), dtype=object)
    for c in range(int(of_jobs.max()) + 1):
        mine = np.flatnonzero(clusters == c)
        count = max(1, round(USERS * np.mean(of_jobs == c)))
        busy = 1 / np.arange(1, count + 1)
        ranks = random.choice(count, len(mine), p=busy / busy.sum())
        users[mine] = [f"u{c}-{rank}" for rank in ranks]
    return tuple(users)
