"""What owners may do to a job in each state. The core acts on these verdicts, and the HTTP API
answers with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from carmad.core.line import never_satisfied
from carmad.core.types import FOR_GOOD, SENT_BACK, Job, JobId, JobState


@dataclass(frozen=True, slots=True)
class Verdict:
    words: str  # for people, after the job's name
    acts: bool = True  # False: there is nothing to do
    refused: bool = False


def cancel(job: Job) -> Verdict:
    """Also cancels a job that is being stopped only to be requeued."""
    if job.ended:
        return _refused(_ended(job))
    if job.stop in FOR_GOOD:
        return Verdict("is already being stopped", acts=False)
    return Verdict("is being stopped" if job.holds_gpus else "cancelled")


def hold(job: Job, held: bool) -> Verdict:
    """Hold (`held`) or release a job that is waiting or being stopped to be requeued."""
    word = "held" if held else "released"
    if job.ended:
        return _refused(_ended(job))
    if job.holds_gpus and job.stop not in SENT_BACK:
        return _refused(f"is {_words(job.state)}: only a waiting job can be {word}")
    if job.held == held:
        return Verdict("was already held" if held else "was not held", acts=False)
    return Verdict(word)


def requeue(job: Job, ended: Mapping[JobId, JobState]) -> Verdict:
    """Run an ended job again, under the same id. `ended`: how its dependencies ended."""
    if not job.ended:
        return _refused(f"has not ended: it is {_words(job.state)}")
    if job.spec.interactive:
        return _refused("ran at a terminal: run it there again")
    if culprit := never_satisfied(job, ended):
        return _refused(f"depends on job {culprit}, which ended as {_words(ended[culprit])}")
    return Verdict("requeued")


def _refused(words: str) -> Verdict:
    return Verdict(words, acts=False, refused=True)


def _ended(job: Job) -> str:
    return f"has already ended: {_words(job.state)}"


def _words(state: JobState) -> str:
    return state.value.replace("_", " ")
