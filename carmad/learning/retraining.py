"""Retrains the models on this server's own past jobs, and checks the old ones for drift."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from carmad.errors import CarmaError
from carmad.learning import duration, forest, interference, table, throughput
from carmad.learning.duration import Row
from carmad.learning.interference import Beside
from carmad.models import Additive, Boosted, Lookup, Model
from carmad.models.traffic import INTERVAL_S, WEEK
from carmad.models.workload import exemplars_of
from carmad.store import codec
from carmad.store.sql import SqlStore

SOURCE = "this server's own jobs"
LEAST_RUNS = 200  # with fewer, the rules for unknown jobs are as good
LEAST_INTERVALS = 2 * WEEK  # a week's worth of features that look a week back
LEAST_COMPANY = 200  # about ten configurations in pairs, each twice
LEAST_NEW = 50  # rows since the old model was trained that it takes to check it
DRIFTED = 1.5  # times its error when it was trained, from which a warning is given

Error = tuple[str, float]


@dataclass(frozen=True, slots=True)
class Said:
    text: str
    alarming: bool = False


@dataclass(frozen=True, slots=True)
class Subject:
    """How a model is trained, and checked later."""

    name: str
    train: Callable[[], Model]  # raises CarmaError if there is too little data
    since: Callable[[Model], Error | None]  # an old model's, on later rows; None: too few


def retrain(store: SqlStore, directory: Path, now: float) -> Iterator[Said]:
    """Train all models with enough data, and report the results. `now` is in Unix s."""
    rows = table.runs(store)
    subjects = (
        _traffic(store, now),
        _durations(rows, now),
        _recurring(rows, now),
        _sharing(table.companies(store), now),
    )
    for subject in subjects:
        path = directory / f"{subject.name}.json"
        try:
            model = subject.train()
        except CarmaError as error:
            yield Said(f"{subject.name}: {error.message}")
            continue
        old = _read(path)
        drift = subject.since(old) if old else None
        if old and drift:
            model = replace(
                model, errors=(*model.errors, (f"the last model's {drift[0]}", drift[1]))
            )
            yield from _alarm(subject.name, old, drift)
        _write(path, model)
        errors = ", ".join(f"{name} {value:.3g}" for name, value in model.errors)
        yield Said(f"{subject.name}: trained on {model.rows} rows; {errors}")


def _alarm(subject: str, old: Model, drift: Error) -> Iterator[Said]:
    name, since = drift
    then = dict(old.errors).get(name)
    if then is not None and since > DRIFTED * then:
        words = f"{name} was {then:.3g} when the model was trained, and {since:.3g} since"
        yield Said(f"{subject} has drifted: the {words}", alarming=True)


def _durations(rows: Sequence[Row], now: float) -> Subject:
    def train() -> Model:
        _enough(rows)
        return duration.train(rows, SOURCE, now)

    def since(old: Model) -> Error | None:
        new = _begun_since(rows, old.trained_at)
        if not isinstance(old, Additive) or len(rows) - new < LEAST_NEW:
            return None
        known = duration.table(rows, exemplars_of(old))[new:]
        return duration.measured(old, known, rows[new:])[-1]  # the median: robust to outliers

    return Subject("duration", train, since)


def _recurring(rows: Sequence[Row], now: float) -> Subject:
    def train() -> Model:
        _enough(rows)
        return forest.train(rows, SOURCE, now)

    def since(old: Model) -> Error | None:
        new = _begun_since(rows, old.trained_at)
        if not isinstance(old, Lookup) or len(rows) - new < LEAST_NEW:
            return None
        return forest.since(old, rows[new:])

    return Subject("forest", train, since)


def _traffic(store: SqlStore, now: float) -> Subject:
    counts, begin = table.counts(store.submissions(), now)

    def train() -> Model:
        if len(counts) < LEAST_INTERVALS:
            known, wanted = (n * INTERVAL_S / 86_400 for n in (len(counts), LEAST_INTERVALS))
            raise CarmaError(f"{known:.1f} days are on record; {wanted:.0f} are needed")
        return throughput.train(counts, begin, "gpus", SOURCE, now)

    def since(old: Model) -> Error | None:
        new = max(0, int((old.trained_at - begin) // INTERVAL_S) + 1)
        if not isinstance(old, Additive) or len(counts) - new < LEAST_NEW:
            return None
        known = throughput.table(counts, begin)[new:]
        off = (
            abs(max(0.0, old.predict(values)) - gpus)
            for values, (_, gpus) in zip(known, counts[new:], strict=True)
        )
        return "MAE", sum(off) / len(known)

    return Subject("throughput", train, since)


def _sharing(told: Sequence[tuple[float, Beside]], now: float) -> Subject:
    """The interference ratio of jobs that share GPUs."""

    def train() -> Model:
        rows = [row for _, row in told]
        if len(rows) < LEAST_COMPANY:
            raise CarmaError(f"{len(rows)} step times beside others; {LEAST_COMPANY} are needed")
        return interference.judged(rows, SOURCE, now)

    def since(old: Model) -> Error | None:
        new = [row for at, row in told if at > old.trained_at]
        if not isinstance(old, Boosted) or len(new) < LEAST_NEW:
            return None
        return interference.ERROR, interference.mae(old, interference.agreed(new))

    return Subject("interference", train, since)


def _enough(rows: Sequence[Row]) -> None:
    if len(rows) < LEAST_RUNS:
        raise CarmaError(f"{len(rows)} jobs have run; {LEAST_RUNS} are needed")


def _begun_since(rows: Sequence[Row], at: float) -> int:
    """The index of the first row submitted after `at`."""
    return next((n for n, row in enumerate(rows) if row["submitted_at"] > at), len(rows))


def _read(path: Path) -> Model | None:
    """None also for a damaged file, which will be replaced."""
    try:
        return codec.decode_model(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path: Path, model: Model) -> None:
    """Atomically, and readable by the owner only: it has the names of users and jobs."""
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text(codec.encode_model(model), encoding="utf-8")
    draft.replace(path)
