"""Loads any trace that `carma simulate` can be given.

`trace.csv` and `trace.parquet` are in CARMA's own format, `philly:PATH` is imported, and
`generate:carma-1?seed=3&tasks=40` is generated. Imports also take `seed` and `tasks`. Importers are
entry points of the group `carma.traces`: functions from a path to a `Trace`, named by their kind.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from random import Random
from typing import cast
from urllib.parse import parse_qsl

from carma_simulator.catalogue import PROFILES, Profile
from carma_simulator.experiment import Load, Task, Trace
from carma_simulator.traces import rows
from carma_simulator.traces.generators import GENERATORS
from carma_simulator.traces.rows import configuration, in_order
from carmad import registry
from carmad.errors import CarmaError

# -- models from the catalogue, by size, for tasks of traces that do not name any. Lucid (4.1) makes
# long tasks on many GPUs more likely large models; A-SRPT (V-A) gives one model to all jobs of a
# recurring group, and models trained on one GPU to groups that ask for one

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


_GENERATE = "generate"
_LEAST = {"seed": 0, "tasks": 1, "gpus": 1}


def load(source: str) -> Trace:
    """The trace that `source` names. Imported and generated tasks of unknown load draw a model.

    With `tasks`, an import is a sequence of that many consecutive tasks, drawn by `seed` (as in
    A-SRPT, V-B); a generator makes that many. Raises CarmaError if `source` is not a trace.
    """
    kind, colon, rest = source.partition(":")
    name, _, query = rest.partition("?")
    if colon and kind == _GENERATE:
        return _generate(source, name, query)
    kinds = registry.names("traces") if colon else []
    if kind in kinds:
        reader = cast(Callable[[Path], Trace], registry.trace_importer(kind))
        imported = partial(_import, reader, Path(name))
        return imported(**_options(source, imported, query))
    if colon and kind.isalpha() and not Path(source).exists():
        raise CarmaError(
            f"no trace is of the kind {kind!r}",
            f"use {', '.join([*kinds, _GENERATE])}, or the path of a CSV or Parquet file",
        )
    return rows.read_trace(Path(source))


def _import(
    reader: Callable[[Path], Trace], path: Path, seed: int = 0, tasks: int | None = None
) -> Trace:
    trace = reader(path)
    if tasks is not None and tasks < len(trace.tasks):
        begin = Random(f"run/{seed}").randrange(len(trace.tasks) - tasks + 1)
        run = trace.tasks[begin : begin + tasks]
        trace = in_order(f"{trace.name}[{begin}:{begin + tasks}]", run, trace.rejected)
    return assign(trace, seed)


def _generate(source: str, name: str, query: str) -> Trace:
    if name not in GENERATORS:
        raise CarmaError(f"no generator is called {name!r}", f"use one of {', '.join(GENERATORS)}")
    options = _options(source, GENERATORS[name], query)
    trace = GENERATORS[name](**options)
    seed = options.get("seed", 0)
    return replace(assign(trace, seed), name=f"{trace.name}-{seed}")


def _options(source: str, make: Callable[..., Trace], query: str) -> dict[str, int]:
    """`seed=3&tasks=40` as numbers; only those that `make` takes."""
    known = [name for name in _LEAST if name in signature(make).parameters]
    options: dict[str, int] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise CarmaError(f"{source} takes no {name!r}", f"it takes {', '.join(known)}")
        if not text.isdecimal() or int(text) < _LEAST[name]:
            hint = f"it must be a whole number of at least {_LEAST[name]}"
            raise CarmaError(f"{source}: {name} is {text!r}", hint)
        options[name] = int(text)
    return options
