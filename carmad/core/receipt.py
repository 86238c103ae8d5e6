"""The efficiency receipt: what sharing GPUs cost a job, and what it saved. The formula is explained
in docs/concepts/sharing.md."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from carmad.core.attempt import Cause
from carmad.core.ran import Ran
from carmad.core.sharing import Stayed
from carmad.core.slowdown import Known, Slowdown, slowdown

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Receipt:
    """Of one job in a period, in GPU-hours."""

    held: float  # its GPUs, all of the time
    shared: float  # that part of it in which another job was on any of its GPUs
    share: float  # held, where a GPU with n jobs counts an n-th for each
    neighbours: int  # over its whole run
    slowdown: Slowdown | None  # None: it did not share, or nothing is known
    alone: float | None  # what its work would have held alone; None: not known

    @property
    def saved(self) -> float | None:
        """GPU-hours that others could use because it shared; negative: it cost more than it gave.
        None: not known."""
        return None if self.alone is None else self.alone - self.share

    @property
    def saved_at_most(self) -> float:
        """As if sharing had not slowed it."""
        return self.held - self.share


def receipt(job: Ran, stays: Sequence[Stayed], known: Known) -> Receipt:
    """`stays`: the job's, as followed by `sharing.met`."""
    useful = [each for each in stays if not _in_vain(each)]
    shared = any(each.shared_s for each in useful)
    found = slowdown(job, useful, known) if shared else None
    alone: float | None = None
    if found or not shared:
        ratio = found.ratio if found else 1.0
        alone = sum(map(_held, useful)) - sum(map(_shared, useful)) * (1 - 1 / ratio)
    return Receipt(
        held=sum(map(_held, stays)),
        shared=sum(map(_shared, stays)),
        share=sum(each.share for each in stays) / HOUR_S,
        neighbours=len({id for each in stays for id in each.others or ()}),
        slowdown=found,
        alone=alone,
    )


def _held(stayed: Stayed) -> float:
    return len(stayed.stay.gpus) * stayed.held_s / HOUR_S


def _shared(stayed: Stayed) -> float:
    return len(stayed.stay.gpus) * stayed.held_shared_s / HOUR_S


def _in_vain(stayed: Stayed) -> bool:
    """Whether sharing may have ended it: alone, it would have had that memory."""
    exit = stayed.stay.exit
    return exit is not None and exit.cause is Cause.GPU_OOM and stayed.shared_s > 0
