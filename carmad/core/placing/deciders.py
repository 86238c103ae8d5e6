"""Who makes the plan: the policy, or the configured fallback while the policy fails.

Whether a call fails does not follow from the inputs, since a plugin may time out. A replay needs
the recorded failures to reproduce a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from carmad.core.messages import Reconfigured
from carmad.core.placing.decision import FALLBACK, PLAN, Placement, Proposal, Reason, describe
from carmad.core.placing.view import Policy, View
from carmad.core.state import FIRST_TRY_S, Deciding, State

LAST_TRY_S = 300.0


@dataclass(frozen=True, slots=True)
class Plan:
    by: str  # the policy that made it
    view: View  # the view it was made from
    proposals: tuple[Proposal, ...]


def on_reconfigured(state: State, event: Reconfigured) -> None:
    its, old, new = state.deciding, state.settings, event.settings
    are_others = (new.policy, new.predictor) != (old.policy, old.predictor)
    if state.make_plugins and are_others:
        its.policy, state.predictor = state.make_plugins(new)
        its.stands_in = False
        its.ask_at, its.delay_s = -inf, FIRST_TRY_S
        forget_policy(state)
    state.settings = new
    state.ledger.rerank()  # `limits.preemption` says whether jobs at a terminal go first
    state.shares.reconfigure(new.fairness, event.at)
    state.fleet.reconfigure(new)


def forget_policy(state: State) -> None:
    """Another policy decides from now on: in its order, and without a memory."""
    state.ledger.reorder(state.ledger.line())
    state.plans.memory = None


def make_plan(state: State, view: View, renew: Callable[[], View]) -> Plan:
    """`renew` reorders the queue for the policy that takes over, and returns the new view.
    If no policy has a plan, all jobs wait, and the first one gets the reason."""
    its = state.deciding
    if not its.stands_in:
        plan = _ask(state, its.policy, PLAN, view)
        if not its.fallback or isinstance(plan, tuple):
            return _plan(its.policy, view, plan)
        _stand_in(its, view.now)
        view = renew()
    elif view.now >= its.ask_at:
        if isinstance(_ask(state, its.policy, PLAN, view), tuple):  # it works again
            its.stands_in = False
            return make_plan(state, renew(), renew)
        _wait_longer(its, view.now)
    assert its.fallback
    made = _plan(its.fallback, view, _ask(state, its.fallback, FALLBACK + PLAN, view))
    notice = Reason("policy_fallback", detail=its.policy.name)
    return replace(made, proposals=tuple(_with_notice(each, notice) for each in made.proposals))


def _ask(state: State, policy: Policy, question: str, view: View) -> tuple[Proposal, ...] | Reason:
    try:
        return state.calls.make(question, lambda: tuple(policy.plan(view)))
    except Exception as error:  # noqa: BLE001 - foreign code
        return Reason("policy_failed", detail=f"it raised {describe(error)}")


def _stand_in(its: Deciding, now: float) -> None:
    """Switch to the fallback. A policy that soon fails again keeps its back-off."""
    its.stands_in = True
    if now - its.ask_at > 2 * its.delay_s:
        its.delay_s = FIRST_TRY_S
        its.ask_at = now + its.delay_s
    else:
        _wait_longer(its, now)


def _wait_longer(its: Deciding, now: float) -> None:
    its.delay_s = min(2 * its.delay_s, LAST_TRY_S)
    its.ask_at = now + its.delay_s


def _plan(policy: Policy, view: View, plan: tuple[Proposal, ...] | Reason) -> Plan:
    if isinstance(plan, Reason):
        plan = (Placement(view.queue[0].id, reasons=(plan,)),)
    return Plan(policy.name, view, plan)


def _with_notice(proposal: Proposal, notice: Reason) -> Proposal:
    if isinstance(proposal, Placement):
        return replace(proposal, explanation=(*proposal.explanation, notice))
    return proposal
