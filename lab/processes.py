"""Runs in processes of their own, as many at once as there are cores."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from typing import TypeVar

Case = TypeVar("Case")
Result = TypeVar("Result")


def in_processes(
    run: Callable[[Case], Result],
    cases: Sequence[Case],
    told: Callable[[Result], str] = str,
    *,
    begin: Callable[..., None] | None = None,
    given: tuple[object, ...] = (),
) -> Iterator[Result]:
    """`run(case)` of each, in order. Each process first calls `begin(*given)`.

    `told` describes a result in the progress on stderr; "" tells of none.
    """
    with get_context("spawn").Pool(os.cpu_count(), begin, given) as pool:
        for n, result in enumerate(pool.imap(run, cases), 1):
            if text := told(result):
                print(f"{n} of {len(cases)}: {text}", file=sys.stderr, flush=True)
            yield result
