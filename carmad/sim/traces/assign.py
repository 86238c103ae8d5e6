"""Assigns models from the catalogue, by size, to tasks of traces that do not name any.

Lucid (4.1) makes long tasks on many GPUs more likely large models; A-SRPT (V-A) gives one model to
all jobs of a recurring group, and models trained on one GPU to groups that ask for one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from carmad.sim.catalogue import PROFILES, Profile
from carmad.sim.task import Load, Task, Trace
from carmad.sim.traces.rows import configuration

# The mix of CARMA's evaluation (4.1): the shares up to which tasks are light and medium.
_LIGHT, _MEDIUM = 0.3, 0.9
_BLUR = 0.25  # how far a task may be from its rank by size, as a share of all tasks
_UNKNOWN = Load()


def assign(trace: Trace, seed: int = 0, profiles: Sequence[Profile] = PROFILES) -> Trace:
    """The trace with a load for each task that has none.

    Tasks are sorted by GPU time, with some blur: then the first 30 % draw a light model,
    the next 60 % a medium one and the last 10 % a heavy one. A user's tasks with the same name and
    number of GPUs share one draw; those without a name draw one each, and are named by it.
    """
    dice = Random(f"assign/{seed}")
    groups: dict[tuple[str, str | int, int], Load] = {}
    unknown = [i for i, task in enumerate(trace.tasks) if task.load == _UNKNOWN]
    unknown.sort(key=lambda i: trace.tasks[i].gpus * trace.tasks[i].duration_s)
    far = _BLUR * len(unknown)
    blurred = {i: place + dice.uniform(-far, far) for place, i in enumerate(unknown)}
    tasks = list(trace.tasks)
    for place, i in enumerate(sorted(unknown, key=blurred.__getitem__)):
        task = tasks[i]
        choice = _choice(task, (place + 0.5) / len(unknown), profiles)
        group = task.user, task.name or i, task.gpus
        load = groups.setdefault(group, dice.choice(choice).load)
        name = task.name or configuration(load.model, load.batch_size)
        tasks[i] = replace(task, name=name, load=load)
    return replace(trace, tasks=tuple(tasks))


def _choice(task: Task, share: float, profiles: Sequence[Profile]) -> list[Profile]:
    """The models whose size matches a rank; for one GPU, those trained on one."""
    size = "light" if share < _LIGHT else "medium" if share < _MEDIUM else "heavy"
    alike = [profile for profile in profiles if profile.size == size]
    return [profile for profile in alike if task.gpus > 1 or profile.gpus == 1]
