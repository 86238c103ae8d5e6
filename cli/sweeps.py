"""What the runs of a sweep were given, and what they reported: the command and the page compare it.
Imports stay light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from carmad.readable import clean
from cli.problems import Usage
from cli.text import NOTHING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Literal

    from carmad.api.job import JobOut

    Value = str | float | None

    Column = tuple[Literal["params", "metrics"], str]  # its kind and name


def columns(jobs: Sequence[JobOut]) -> list[Column]:
    """All that the jobs have: parameters, then metrics."""
    params: list[Column] = [("params", name) for job in jobs for name in job.get("params", ())]
    metrics: list[Column] = [("metrics", name) for job in jobs for name in job.get("metrics", ())]
    return list(dict.fromkeys((*params, *metrics)))


def values(job: JobOut, columns: Sequence[Column]) -> list[Value]:
    return [job.get(kind, {}).get(name) for kind, name in columns]


def sort(jobs: Sequence[JobOut], name: str, reverse: bool) -> list[JobOut]:
    """By the metric or else the parameter of this name. Those without a value come last, whatever
    the order. Raises Usage if none has it."""
    known = [known for _, known in columns(jobs)]
    if name not in known:
        raise Usage(f"there is no {name}", f"sort by one of: {', '.join(known) or 'nothing yet'}")

    def value(job: JobOut) -> Value:
        metric, param = values(job, [("metrics", name), ("params", name)])
        return param if metric is None else metric

    with_one = [job for job in jobs if value(job) is not None]
    with_one.sort(key=lambda job: _key(value(job)), reverse=reverse)
    return with_one + [job for job in jobs if value(job) is None]


def _key(value: Value) -> tuple[bool, float, str]:
    """Numbers first, by value; then text."""
    try:
        return False, float("" if value is None else value), ""
    except ValueError:
        return True, 0.0, str(value)


def cell(value: Value) -> str:
    """The value as tables show it."""
    if value is None:
        return NOTHING
    return f"{value:.6g}" if isinstance(value, float | int) else clean(value)
