"""Predictors of how long a job will run, each a chain of answers. A declared duration (`--expect`)
takes precedence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from carmad.learning.features import bucket, duration_features, exemplars_of
from carmad.plugin import Additive, History, Job, Lookup, Model, Prediction, Settings

Answer = Callable[[Job, History, Mapping[str, Model]], Prediction | None]


@dataclass(frozen=True, slots=True)
class Chain:
    """Predicts what the first of these says that has an answer."""

    name: str
    answers: tuple[Answer, ...]

    def predict(
        self, job: Job, history: History, models: Mapping[str, Model], now: float
    ) -> Prediction | None:
        found = (answer(job, history, models) for answer in self.answers)
        return next((prediction for prediction in found if prediction), None)


def owners(settings: Settings) -> Chain:
    """The duration that the user declared (`--expect`), and nothing else."""
    return Chain("declared", (owners_prediction,))


def history(settings: Settings) -> Chain:
    """How long similar jobs took: the median of the latest runs of the same job, otherwise Lucid's
    fallbacks (Lucid paper, 3.4): the mean of the user's jobs, or all users' with the same GPU
    demand. Of the latter it is the median over users here, so that no user determines others'
    predictions."""
    return Chain("history", (owners_prediction, recurring, unheard_of))


def additive(settings: Settings) -> Chain:
    """The Workload Estimate Model (Lucid paper, 3.5.3), trained by `carmad.learning.training` on
    this server's past jobs; until there is one, the history predictor."""
    return Chain("additive", (owners_prediction, by_workload, recurring, unheard_of))


def forest(settings: Settings) -> Chain:
    """A random forest for recurring jobs (A-SRPT paper, IV-C-3), trained by
    `carmad.learning.training.forest` on this server's past jobs and stored as a table.

    The paper predicts 0 for a job that has not run before, so that it starts at once: a short one
    gets through quickly, and more is known about a long one next time. For a job that has run, but
    is not in the model, its own runs are used.
    """
    return Chain("forest", (owners_prediction, by_forest, recurring, unseen))


# -- answers


def owners_prediction(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    expected_s = job.spec.expected_s
    return None if expected_s is None else Prediction(expected_s, "declared")


def recurring(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    usual_s = history.by_group.median(job.group)
    if usual_s is None:
        return None
    runs = len(history.by_group.of(job.group))
    of = "one earlier run" if runs == 1 else f"the median of {runs} earlier runs"
    at_most_s = history.by_group.at_most(job.group)
    return Prediction(usual_s, "history", notes=(f"{of} of this job",), at_most_s=at_most_s)


def unheard_of(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    """Cold start: the prediction for a job that has not run before."""
    mean_s, gpus = history.by_user.mean(job.spec.owner), job.spec.gpus
    if mean_s is not None:
        of = f"the mean of {job.spec.user}'s latest jobs"
        return Prediction(mean_s, "history", notes=(of,), is_guess=True)
    usual_s = history.by_gpus.median(gpus)
    if usual_s is None:
        return None
    of = f"what users' jobs of {gpus} GPUs usually take"
    return Prediction(usual_s, "history", notes=(of,), is_guess=True)


def by_workload(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    model = models.get("duration")
    if not isinstance(model, Additive):
        return None
    values = _values(job, history, exemplars_of(model))
    parts = tuple(part for part in model.contributions(values) if part[1])
    notes = (f"learned from {model.rows} jobs; what each feature adds is to the logarithm",)
    return Prediction(model.predict(values), "additive", parts, notes)


def by_forest(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    model = models.get("forest")
    if not isinstance(model, Lookup) or job.group not in model.seconds:
        return None
    notes = (f"learned from {model.rows} jobs, runs of this one among them",)
    return Prediction(model.predict(job.group), "forest", notes=notes)


def unseen(job: Job, history: History, models: Mapping[str, Model]) -> Prediction | None:
    return Prediction(0.0, "forest", notes=("it has not run before",))


def _values(job: Job, history: History, exemplars: tuple[str, ...]) -> Mapping[str, float | str]:
    profile = None
    if job.profile is not None and job.profile.seconds:
        profile = {each.name: each.mean for each in job.profile.indicators}
        profile["peak_mib"] = float(job.profile.peak_mib)
    return duration_features(
        job.spec.user,
        bucket(job.spec.name, exemplars),
        job.spec.gpus,
        job.submitted_at,
        history.by_user.of(job.spec.owner),
        history.by_group.of(job.group),
        profile,
    )
