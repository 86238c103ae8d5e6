"""Shortest first: at once, beside others while that costs little, and in place of the longest.

The rules (what each is worth: docs/policies/carma.md):

- **Order.** By remaining service: the time that is left × GPUs. A job of unknown duration has as
  much left as it has run, in classes. Nothing submitted later than ten times a job's service after
  it goes before it.
- **Place.** Wherever its memory fits; idle GPUs first, then the one with the most free memory. A
  GPU that is busy enough takes only jobs that hardly add to that.
- **Suspend**, if `limits.preemption` is "suspend": of the jobs that have much more left, the
  longest, no more than are in the way.
- **Join**, if nobody can be suspended: a busy GPU also takes a job that is short beside all there.
- **Hold.** The first waiting job that needs empty GPUs is promised those that are expected to be
  empty first. Until then others may use them only if they are expected to end in time (EASY
  backfilling).
"""

from __future__ import annotations

from dataclasses import dataclass

from carmad.plugin import Job, Proposal, Settings, View
from policies.builtin import most_free_memory
from policies.carma.planning import Plan, Rules, place
from policies.filters import fits_memory, min_free
from policies.ranked import Ranked


@dataclass(frozen=True, slots=True, eq=False)
class Carma:
    name: str
    rules: Rules

    def order(self, job: Job) -> float:
        return place(job, job.suspension.at if job.suspension else job.submitted_at, self.rules)

    def plan(self, view: View) -> tuple[Proposal, ...]:
        if not view.queue:
            return ()
        first, view = self.rules.fits.place_on_reserved(view)
        return (*first, *Plan(self.rules, view).make())


def carma(settings: Settings) -> Carma:
    conditions = settings.preconditions_for("carma")
    memory = fits_memory(conditions, settings), min_free(conditions, settings)
    return Carma("carma", Rules(Ranked("carma", memory, most_free_memory, idle_first=True)))
