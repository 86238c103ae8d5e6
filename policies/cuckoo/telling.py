"""What a job's owner is told: why it starts there, and what a job that waits is waiting for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from carmad.plugin import GpuId, Job, JobId, Reason
from policies.cuckoo.groups import Group
from policies.cuckoo.members import Member
from policies.reasons import expected


class Planned(NamedTuple):
    """What a plan has for a group. Times are seconds from now."""

    group: Group
    rank: int = 0  # 0: nobody was before it in line
    begin_s: float = 0.0
    ends_s: tuple[float, ...] = ()  # of each of its jobs; none: it has no GPUs in the plan
    gpus: tuple[GpuId, ...] = ()
    order: int = 1  # on these GPUs
    after: tuple[JobId, ...] = ()  # who uses them until then

    def partner(self, member: Member) -> Member | None:
        return next((each for each in self.group.members if each is not member), None)

    def end_s(self, member: Member) -> float:
        return self.ends_s[self.group.members.index(member)] if self.ends_s else math.inf


def explanation(member: Member, planned: Planned) -> tuple[Reason, ...]:
    """Of one that starts."""
    return (*expected(member.job), *_pair(member, planned), *_deadline(member, planned))


def waiting(job: Job, planned: Planned, packs: bool) -> tuple[Reason, ...]:
    """Of one that does not: when its turn is, and its partner, or why it has none."""
    member = next(each for each in planned.group.members if each.job.id == job.id)
    return (
        *_turn(planned),
        *_partner(member, planned, packs),
        *_deadline(member, planned, late=True),
    )


def _partner(member: Member, planned: Planned, packs: bool) -> Iterator[Reason]:
    if partner := planned.partner(member):
        # Who starts first waits for no partner.
        code = "partner" if member is planned.group.members[1] else "packed"
        yield Reason(code, 1.0, planned.group.efficiency, detail=_name(partner.job.id))
    elif member.missing:
        yield Reason(member.missing, detail="this job")
    elif packs:
        yield Reason("no_partner")


def _pair(member: Member, planned: Planned) -> Iterator[Reason]:
    """With whom it is packed, and how close their deadlines are, if they have any."""
    partner = planned.partner(member)
    if partner is None:
        return
    group, name = planned.group, _name(partner.job.id)
    yield Reason("packed", 1.0, group.efficiency, detail=name)
    if math.isfinite(min(member.deadline_s, partner.deadline_s)):
        yield Reason("close_deadlines", 1.0, group.closeness, detail=name)


def _turn(planned: Planned) -> Iterator[Reason]:
    """Who uses its GPUs before it is named if it is next: further on that changes all the time."""
    if planned.ends_s and planned.begin_s > 0:
        next_one = planned.order == 1
        after = ", ".join(map(_name, planned.after)) if next_one else ""
        yield Reason("planned_start", planned.order, planned.begin_s, "s", after)


def _deadline(member: Member, planned: Planned, late: bool = False) -> Iterator[Reason]:
    """Whether the plan keeps it; with `late`, only if it does not."""
    end_s = planned.end_s(member)
    if not math.isfinite(member.deadline_s) or not math.isfinite(end_s):
        return
    if end_s > member.deadline_s:
        yield Reason("deadline", member.deadline_s, end_s, "s")
    elif not late:
        yield Reason("planned_end", member.deadline_s, end_s, "s")


def _name(job: JobId) -> str:
    return f"job {job}"
