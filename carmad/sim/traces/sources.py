"""Loads any trace that `carma simulate` can be given.

`trace.csv` and `trace.parquet` are in CARMA's own format, `philly:PATH` is imported, and
`generate:carma-1?seed=3&tasks=40` is generated. Imports also take `seed` and `tasks`. Importers are
entry points of the group `carma.traces`: functions from a path to a `Trace`, named by their kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from inspect import signature
from pathlib import Path
from random import Random
from typing import cast
from urllib.parse import parse_qsl

from carmad import registry
from carmad.errors import CarmaError
from carmad.sim.task import Trace
from carmad.sim.traces import native
from carmad.sim.traces.assign import assign
from carmad.sim.traces.generators import GENERATORS
from carmad.sim.traces.rows import ordered

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
        return _generated(source, name, query)
    kinds = registry.names("traces") if colon else []
    if kind in kinds:
        reader = cast(Callable[[Path], Trace], registry.trace_importer(kind))
        imported = partial(_imported, reader, Path(name))
        return imported(**_options(source, imported, query))
    if colon and kind.isalpha() and not Path(source).exists():
        raise CarmaError(
            f"no trace is of the kind {kind!r}",
            f"use {', '.join([*kinds, _GENERATE])}, or the path of a CSV or Parquet file",
        )
    return native.read(Path(source))


def _imported(
    reader: Callable[[Path], Trace], path: Path, seed: int = 0, tasks: int | None = None
) -> Trace:
    trace = reader(path)
    if tasks is not None and tasks < len(trace.tasks):
        begin = Random(f"run/{seed}").randrange(len(trace.tasks) - tasks + 1)
        run = trace.tasks[begin : begin + tasks]
        trace = ordered(f"{trace.name}[{begin}:{begin + tasks}]", run, trace.rejected)
    return assign(trace, seed)


def _generated(source: str, name: str, query: str) -> Trace:
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
