"""Reasons for owners: why a job starts there, and what a waiting job is waiting for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from carmad.plugin import Job, JobId, Reason
from policies.cuckoo.groups import Group
from policies.cuckoo.members import Member
from policies.reasons import expectation


class Planned(NamedTuple):
    """A group's place in a plan. Times are in seconds from now."""

    group: Group
    begin_s: float = 0.0
    ends_s: tuple[float, ...] = ()  # of each of its jobs; empty: it has no GPUs in the plan
    order: int = 1  # on its GPUs
    after: tuple[JobId, ...] = ()  # the jobs that use them until then

    def partner(self, member: Member) -> Member | None:
        return next((each for each in self.group.members if each is not member), None)

    def end_s(self, member: Member) -> float:
        return self.ends_s[self.group.members.index(member)] if self.ends_s else math.inf


def explanation(member: Member, planned: Planned) -> tuple[Reason, ...]:
    """For a job that starts."""
    return (*expectation(member.job), *_pair(member, planned), *_deadline(member, planned))


def waiting(job: Job, planned: Planned, packs: bool) -> tuple[Reason, ...]:
    """For a waiting job: when its turn is, and its partner, or why it has none."""
    member = next(each for each in planned.group.members if each.job.id == job.id)
    return (
        *_turn(planned),
        *_partner(member, planned, packs),
        *_deadline(member, planned, late=True),
    )


def _partner(member: Member, planned: Planned, packs: bool) -> Iterator[Reason]:
    if partner := planned.partner(member):
        # A job that starts first does not wait for a partner.
        code = "partner" if member is planned.group.members[1] else "packed"
        yield Reason(code, 1.0, planned.group.efficiency, detail=_name(partner.job.id))
    elif member.missing:
        yield Reason(member.missing, detail="this job")
    elif packs:
        yield Reason("no_partner")


def _pair(member: Member, planned: Planned) -> Iterator[Reason]:
    """The job that it is packed with, and how close their deadlines are, if any."""
    partner = planned.partner(member)
    if partner is None:
        return
    group, name = planned.group, _name(partner.job.id)
    yield Reason("packed", 1.0, group.efficiency, detail=name)
    if math.isfinite(min(member.deadline_s, partner.deadline_s)):
        yield Reason("close_deadlines", 1.0, group.closeness, detail=name)


def _turn(planned: Planned) -> Iterator[Reason]:
    """Its turn. The jobs before it on its GPUs are named only if it is next: otherwise they would
    change all the time."""
    if planned.ends_s and planned.begin_s > 0:
        next_one = planned.order == 1
        after = ", ".join(map(_name, planned.after)) if next_one else ""
        yield Reason("planned_start", planned.order, planned.begin_s, "s", after)


def _deadline(member: Member, planned: Planned, late: bool = False) -> Iterator[Reason]:
    """Whether the plan meets its deadline; with `late`, only if it does not."""
    end_s = planned.end_s(member)
    if not math.isfinite(member.deadline_s) or not math.isfinite(end_s):
        return
    if end_s > member.deadline_s:
        yield Reason("deadline", member.deadline_s, end_s, "s")
    elif not late:
        yield Reason("planned_end", member.deadline_s, end_s, "s")


def _name(job: JobId) -> str:
    return f"job {job}"
