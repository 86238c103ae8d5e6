"""The best estimator that has an answer: the default."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from carmad.plugin import Estimate, Estimator, JobSpec, Refusal, Server, Settings
from estimators.declared import declared
from estimators.faketensor import faketensor
from estimators.gpumemnet import gpumemnet
from estimators.history import current_history, history, unchecked_history
from estimators.horus import horus
from estimators.tracing import trace

Make = Callable[[Settings, Server], Estimator]

DECLARED: tuple[Make, ...] = (declared, unchecked_history)
KNOWN: tuple[Make, ...] = (declared, current_history)
BY_LOOK: tuple[Make, ...] = (trace, history, gpumemnet, horus, faketensor)


@dataclass(frozen=True, slots=True)
class Auto:
    """Asks in this order: declared, history, trace, history of an older script, gpumemnet, horus.

    The first that answers is chosen; its notes say why those before it did not. The others'
    estimates are kept with it, so that they are evaluated when the job ends. The script is tried
    (once, for all estimators) only if neither `--gpu-mem` nor history has an answer. With
    `--gpu-mem`, nothing of the user's is run, or waited for.
    FakeTensor is only there to be evaluated: if there is a trial, the trace has an answer.
    """

    settings: Settings
    server: Server
    name: str = "auto"

    def estimate(self, spec: JobSpec) -> Estimate | Refusal:
        refusals: list[Refusal] = []
        for makers in (KNOWN if spec.declared is None else DECLARED, BY_LOOK):
            answers = [self._ask(make, spec) for make in makers]
            estimates = [answer for answer in answers if isinstance(answer, Estimate)]
            if estimates:
                chosen, *others = estimates
                refusals += _refusals(answers[: answers.index(chosen)])
                why = dict.fromkeys(f"no {no.source}: {no.why}" for no in refusals)
                notes = (*chosen.notes, *why)
                crash = _crash(refusals)
                return replace(chosen, notes=notes, others=tuple(others), crash=crash)
            refusals += _refusals(answers)
        # The trial's reason comes first: it says most about the job.
        refusals = refusals[len(KNOWN) :] + refusals[: len(KNOWN)]
        whys = "; ".join(dict.fromkeys(no.why for no in refusals))
        return Refusal(
            whys,
            self.name,
            max(no.seconds for no in refusals),
            late=any(no.late for no in refusals),
            crash=_crash(refusals),
        )

    def _ask(self, make: Make, spec: JobSpec) -> Estimate | Refusal:
        """A failing estimator must not prevent the others' answers: its packages may be missing,
        and the results of a trial come from a process of the user's."""
        estimator = make(self.settings, self.server)
        try:
            return estimator.estimate(spec)
        except Exception as error:  # noqa: BLE001 - see above
            return Refusal(f"it failed: {error!r:.200}", estimator.name)


def _refusals(answers: list[Estimate | Refusal]) -> list[Refusal]:
    return [answer for answer in answers if isinstance(answer, Refusal)]


def _crash(refusals: list[Refusal]) -> str:
    return next((no.crash for no in refusals if no.crash), "")


def auto(settings: Settings, server: Server) -> Auto:
    return Auto(settings, server)
