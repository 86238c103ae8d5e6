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

    The first that answers is chosen; why those before it did not is among its notes. What the
    others say is kept beside it, so that the job's end judges them as well. But the script is
    looked at (once, for all who want to) only if neither its owner nor its history knows. Nothing
    of the user's is run, or waited for, where its owner knows.
    FakeTensor is there to be judged: where there is a look, the trace has an answer.
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
                return replace(chosen, notes=(*chosen.notes, *why), others=tuple(others))
            refusals += _refusals(answers)
        # What the look ran into comes first: it says most of the job.
        refusals = refusals[len(KNOWN) :] + refusals[: len(KNOWN)]
        whys = "; ".join(dict.fromkeys(no.why for no in refusals))
        return Refusal(whys, self.name, max(no.seconds for no in refusals))

    def _ask(self, make: Make, spec: JobSpec) -> Estimate | Refusal:
        """One that fails must not take the others' answers with it: its packages may be missing,
        and what a look finds comes from a process of the user's."""
        estimator = make(self.settings, self.server)
        try:
            return estimator.estimate(spec)
        except Exception as error:  # noqa: BLE001 - see above
            return Refusal(f"it failed: {error!r:.200}", estimator.name)


def _refusals(answers: list[Estimate | Refusal]) -> list[Refusal]:
    return [answer for answer in answers if isinstance(answer, Refusal)]


def auto(settings: Settings, server: Server) -> Auto:
    return Auto(settings, server)
