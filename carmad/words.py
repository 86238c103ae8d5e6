"""How a reason is put into words, and how times are written in it. Plugins declare the words of
their own reasons; `carmad.api.reasons` has those of the core's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from carmad.core.placing.decision import Reason

MOST_NAMED = 4  # dependencies of a job


@dataclass(frozen=True, slots=True)
class Wording:
    """The wording of one reason code."""

    name: str  # for tables: GpuMemory
    sentence: Callable[[Reason], str]  # for `carma why`; about a GPU, it continues "GPU 1: "
    brief: Callable[[Reason], str] | None = None  # a few words for tables, after the name


def clock(at: float) -> str:
    """A Unix time in the server's time zone, which is that of its users."""
    return f"{datetime.fromtimestamp(at).astimezone():%Y-%m-%d %H:%M %Z}"


def first_few(names: str) -> str:
    """The first of a comma-separated list, and how many more there are."""
    each = names.split(", ")
    if len(each) <= MOST_NAMED:
        return names
    return f"{', '.join(each[:MOST_NAMED])} and {len(each) - MOST_NAMED} more"


def detail(reason: Reason) -> str:
    """A `brief` for reasons whose detail is short: a job, a user, an administrator's reason."""
    return reason.detail
