"""Calls to plugins: which fail, and who decides while the policy does.

Whether a call fails does not follow from the inputs, since a plugin may time out. A replay needs
the recorded failures to reproduce a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.job import Job
from carmad.core.placing.decision import (
    FALLBACK,
    ORDER,
    PLAN,
    Calls,
    Placement,
    Proposal,
    Reason,
    describe,
)
from carmad.core.placing.view import Policy, View

FIRST_TRY_S = 5.0  # until a failed policy is retried; doubled at each further failure
LAST_TRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    by: str  # the policy that made it
    view: View  # the view it was made from
    proposals: tuple[Proposal, ...]


class Deciders:
    """The policy, or the configured fallback while the policy fails. `unordered` has the jobs for
    which `order` failed: they are last in the queue."""

    def __init__(self, policy: Policy, fallback: Policy | None, calls: Calls) -> None:
        self.policy = policy
        self.unordered: dict[JobId, None] = {}
        self._fallback = fallback
        self._calls = calls
        self._standing_in = False
        self._ask_at = -inf
        self._delay_s = FIRST_TRY_S

    def succeed(self, policy: Policy) -> None:
        """From now on, this one decides."""
        self.policy, self._standing_in = policy, False
        self._ask_at, self._delay_s = -inf, FIRST_TRY_S

    @property
    def acting(self) -> Policy:
        return self._fallback if self._fallback and self._standing_in else self.policy

    def order(self, job: Job) -> float:
        policy = self.acting
        question = ORDER if policy is self.policy else FALLBACK + ORDER
        self.unordered.pop(job.id, None)
        try:
            return self._calls.make(question, lambda: policy.order(job))
        except Exception:  # noqa: BLE001 - foreign code
            self.unordered[job.id] = None
            return inf

    def plan(self, view: View, renew: Callable[[], View]) -> Plan:
        """`renew` reorders the queue for the policy that takes over, and returns the new view.
        If no policy has a plan, all jobs wait, and the first one gets the reason."""
        if not self._standing_in:
            plan = self._of(self.policy, PLAN, view)
            if not self._fallback or isinstance(plan, tuple):
                return _plan(self.policy, view, plan)
            self._stand_in(view.now)
            view = renew()
        elif view.now >= self._ask_at:
            if isinstance(self._of(self.policy, PLAN, view), tuple):  # it works again
                self._standing_in = False
                return self.plan(renew(), renew)
            self._wait_longer(view.now)
        assert self._fallback
        made = _plan(self._fallback, view, self._of(self._fallback, FALLBACK + PLAN, view))
        notice = Reason("policy_fallback", detail=self.policy.name)
        return replace(made, proposals=tuple(_with_notice(each, notice) for each in made.proposals))

    def _of(self, policy: Policy, question: str, view: View) -> tuple[Proposal, ...] | Reason:
        try:
            return self._calls.make(question, lambda: tuple(policy.plan(view)))
        except Exception as error:  # noqa: BLE001 - foreign code
            return Reason("policy_failed", detail=f"it raised {describe(error)}")

    def _stand_in(self, now: float) -> None:
        """Switch to the fallback. A policy that soon fails again keeps its back-off."""
        self._standing_in = True
        if now - self._ask_at > 2 * self._delay_s:
            self._delay_s = FIRST_TRY_S
            self._ask_at = now + self._delay_s
        else:
            self._wait_longer(now)

    def _wait_longer(self, now: float) -> None:
        self._delay_s = min(2 * self._delay_s, LAST_TRY_S)
        self._ask_at = now + self._delay_s


def _plan(policy: Policy, view: View, plan: tuple[Proposal, ...] | Reason) -> Plan:
    if isinstance(plan, Reason):
        plan = (Placement(view.queue[0].id, reasons=(plan,)),)
    return Plan(policy.name, view, plan)


def _with_notice(proposal: Proposal, notice: Reason) -> Proposal:
    if isinstance(proposal, Placement):
        return replace(proposal, explanation=(*proposal.explanation, notice))
    return proposal
