"""Proposes settings for a policy (Lucid paper, 3.6.1, "System Tuner"): the values that it declares
as `TUNABLE` are simulated, one setting after the other. The earlier half of the jobs chooses, the
later half judges: a value that is better by chance is not better there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from carma_simulator.experiment import Experiment, Outcome
from carma_simulator.metrics import figures
from carmad import configfile, registry
from carmad.configwriting import settings_text
from carmad.errors import CarmaError
from carmad.readable import change

LEAST_GAIN = 0.01  # of the mean JCT: less is chance

Ran = tuple[Experiment, Outcome]
Value = int | float


class Score(NamedTuple):
    """Of some of a run's jobs."""

    unfinished: int
    mean_jct_s: float

    def beats(self, other: Score) -> bool:
        if self.unfinished != other.unfinished:
            return self.unfinished < other.unfinished
        return self.mean_jct_s < (1 - LEAST_GAIN) * other.mean_jct_s


@dataclass(frozen=True, slots=True)
class Proposal:
    changes: Mapping[str, Value]  # from the current settings
    best: Ran  # with these
    halves: tuple[tuple[Score, Score], ...]  # of the jobs, earlier and later: now, and with these

    @property
    def holds(self) -> bool:
        now, then = self.halves[1]
        return then.beats(now)

    @property
    def text(self) -> str:
        """For the administrator, whose settings file nothing else changes."""
        policy = self.best[0].settings.policy
        if not self.changes:
            return f"{policy}: of the settings tried, none is better than the current ones"
        gain, of_later = (change(then.mean_jct_s, now.mean_jct_s) for now, then in self.halves)
        verdict = "proposed for" if self.holds else "tried, and not proposed for"
        return (
            f"{policy}: {verdict} the settings file, which stays as it is:\n"
            f"{settings_text(self.changes)}"
            f"the mean JCT of the earlier half of the jobs, for which this was chosen: {gain};"
            f" of the later half: {of_later}"
        )


def tunable(policy: str) -> Mapping[str, Sequence[Value]]:
    """The settings that a policy declares as tunable, each with the values to try."""
    found = {
        name: own.TUNABLE
        for (kind, name), own in registry.settings_of_plugins().items()
        if kind == "policies" and hasattr(own, "TUNABLE")
    }
    if policy not in found:
        hint = f"give KEY=A,B, or one of {', '.join(sorted(found))}"
        raise CarmaError(f"--tune {policy}: no policy of that name says what to tune", hint)
    declared: Mapping[str, Sequence[Value]] = found[policy]
    return declared


def propose(current: Ran, sweep: Callable[[Sequence[Experiment]], list[Ran]]) -> Proposal:
    """For the policy of the run `current`."""
    half = len(current[1].jobs) // 2
    halves = slice(half), slice(half, None)
    best, changes = current, dict[str, Value]()
    for key, values in tunable(current[0].settings.policy).items():
        settings = [configfile.change(best[0].settings, [f"{key}={value}"]) for value in values]
        runs = sweep([replace(current[0], settings=changed) for changed in settings])
        for value, ran in zip(values, runs, strict=True):
            if _score(ran, halves[0]).beats(_score(best, halves[0])):
                best, changes[key] = ran, value
    scores = tuple((_score(current, part), _score(best, part)) for part in halves)
    return Proposal(changes, best, scores)


def _score(ran: Ran, part: slice) -> Score:
    """Of a part of the jobs, in order of submission."""
    of_part = figures(replace(ran[1], jobs=ran[1].jobs[part]))
    return Score(of_part.jobs - of_part.finished, of_part.jct.mean if of_part.jct else 0.0)
