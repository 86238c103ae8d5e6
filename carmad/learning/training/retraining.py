"""Retrains the models on this server's own past jobs, and checks the old ones for drift."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import itemgetter
from pathlib import Path
from statistics import median_low

from carmad.core.gpus.slowdown import beside
from carmad.core.jobs.history import Submission
from carmad.core.jobs.job import Job
from carmad.core.jobs.states import ENDED
from carmad.errors import CarmaError
from carmad.learning.features import INTERVAL_S, PROFILE, WEEK, exemplars_of
from carmad.learning.files import decode_model
from carmad.learning.models import Additive, Boosted, Lookup, Model
from carmad.learning.training import forest, interference, lucid
from carmad.learning.training.interference import Beside
from carmad.learning.training.lucid import Row
from carmad.store import codec
from carmad.store.sql import SqlStore
from carmad.store.values import Cell, table_row

# -- training tables, from a copy of the daemon's database

MOST_RUNS = 50_000  # the latest ones, to limit memory and time
MOST_OF_USER = 1_000  # unless the median user has more: no user may dominate
MOST_RATIO = 20.0  # reports are the users' own words; the largest ever measured is 11 (Gavel, V100)
MOST_MET, LEAST_MET = 300, 50  # step times of a user beside others, even if others have fewer
PAGE = 500  # jobs read at a time: their environments are large
KEPT = ("user", "group", "name", "gpus", "submitted_at", "ended_at", "duration_s")


def runs(store: SqlStore) -> list[Row]:
    """The latest jobs that ran, in order of submission, as rows for `lucid`; limited per user."""
    users = store.users()
    if not users:
        return []
    share = max(MOST_OF_USER, MOST_RUNS // len(users))
    by_user = [list(islice(_newest_first(store, user), share)) for user in users]
    most = max(MOST_OF_USER, median_low(map(len, by_user)))
    found = (each for rows in by_user for each in rows[:most])
    return sorted(found, key=lambda one: float(one["submitted_at"]))[-MOST_RUNS:]


def companies(store: SqlStore) -> list[tuple[float, Beside]]:
    """Slowdowns that jobs reported beside others, and when these jobs ended, the oldest first.

    Reports are the users' own words. Of each user every pair counts once, with the median of its
    ratios, and of these the latest, as many as the user has who is a third of the way up: from
    three users on, nobody has more than a third of all, or `LEAST_MET`.
    """
    everybodys = (_medians(islice(_pairs(store, user), MOST_MET)) for user in store.users())
    by_user = sorted((told for told in everybodys if told), key=len)
    most = max(LEAST_MET, len(by_user[(len(by_user) - 1) // 3])) if by_user else 0
    return sorted((row for told in by_user for row in told[:most]), key=itemgetter(0))


def count_submissions(
    submissions: Sequence[Submission], now: float
) -> tuple[list[tuple[int, int]], float]:
    """Jobs submitted, and GPUs that they asked for, in each complete interval from the first
    submission on; and when the first interval began. `submissions` are in order."""
    if not submissions:
        return [], now
    first, end = (int(at // INTERVAL_S) for at in (submissions[0].at, now))
    jobs, gpus = [0] * (end - first), [0] * (end - first)
    for at, wanted, count in submissions:
        if (n := int(at // INTERVAL_S) - first) < len(jobs):
            jobs[n] += count
            gpus[n] += wanted
    return list(zip(jobs, gpus, strict=True)), first * INTERVAL_S


def _pairs(store: SqlStore, user: str) -> Iterator[tuple[float, Beside]]:
    """The newest first."""
    for job in _jobs(store, user):
        for each in job.company:
            # Recurring jobs share a profile: their later runs are the same pair.
            pair = "|".join(sorted((repr(each.own), repr(each.other))))
            ratio = min(each.ratio, MOST_RATIO)
            values = beside(each.own, each.other, each.mps)
            yield job.ended_at or 0.0, Beside(values, ratio, pair, user)


def _medians(told: Iterable[tuple[float, Beside]]) -> list[tuple[float, Beside]]:
    """One row per features, with the median ratio, in the order of their latest."""
    by_values: dict[tuple[tuple[str, float], ...], list[tuple[float, Beside]]] = {}
    for at, met in told:
        by_values.setdefault(tuple(met.values.items()), []).append((at, met))
    return [
        (alike[0][0], replace(alike[0][1], ratio=median_low(met.ratio for _, met in alike)))
        for alike in by_values.values()
    ]


def _newest_first(store: SqlStore, user: str) -> Iterator[Row]:
    cells = map(table_row, _jobs(store, user))
    return (_as_known(each) for each in cells if each["duration_s"] is not None)


def _jobs(store: SqlStore, user: str) -> Iterator[Job]:
    """A user's ended jobs, the newest first."""
    page = store.history(user=user, states=ENDED, limit=PAGE)
    while page:
        yield from page
        page = store.history(user=user, states=ENDED, before=page[-1].id, limit=PAGE)


def _as_known(cells: Mapping[str, Cell]) -> Row:
    """What was known of the job when it was submitted. Its own profile is left out: short jobs have
    none, which would reveal their duration."""
    known = {name: cells[name] for name in KEPT}
    if cells["profile_of"] is None:
        return known
    profile = {name: cells[name] for name in PROFILE if name in cells}
    return known | profile | {"peak_mib": cells["profile_peak_mib"]}


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
    rows = runs(store)
    subjects = (
        _traffic(store, now),
        _durations(rows, now),
        _recurring(rows, now),
        _sharing(companies(store), now),
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
        return lucid.train_duration(rows, SOURCE, now)

    def since(old: Model) -> Error | None:
        new = _first_since(rows, old.trained_at)
        if not isinstance(old, Additive) or len(rows) - new < LEAST_NEW:
            return None
        known = lucid.duration_table(rows, exemplars_of(old))[new:]
        return lucid.measure_duration(old, known, rows[new:])[-1]  # the median: robust to outliers

    return Subject("duration", train, since)


def _recurring(rows: Sequence[Row], now: float) -> Subject:
    def train() -> Model:
        _enough(rows)
        return forest.train(rows, SOURCE, now)

    def since(old: Model) -> Error | None:
        new = _first_since(rows, old.trained_at)
        if not isinstance(old, Lookup) or len(rows) - new < LEAST_NEW:
            return None
        return forest.since(old, rows[new:])

    return Subject("forest", train, since)


def _traffic(store: SqlStore, now: float) -> Subject:
    counts, begin = count_submissions(store.submissions(), now)

    def train() -> Model:
        if len(counts) < LEAST_INTERVALS:
            known, wanted = (n * INTERVAL_S / 86_400 for n in (len(counts), LEAST_INTERVALS))
            raise CarmaError(f"{known:.1f} days are on record; {wanted:.0f} are needed")
        return lucid.train_traffic(counts, begin, "gpus", SOURCE, now)

    def since(old: Model) -> Error | None:
        new = max(0, int((old.trained_at - begin) // INTERVAL_S) + 1)
        if not isinstance(old, Additive) or len(counts) - new < LEAST_NEW:
            return None
        known = lucid.traffic_table(counts, begin)[new:]
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
        return interference.train_and_judge(rows, SOURCE, now)

    def since(old: Model) -> Error | None:
        new = [row for at, row in told if at > old.trained_at]
        if not isinstance(old, Boosted) or len(new) < LEAST_NEW:
            return None
        return interference.ERROR, interference.mae(old, interference.consensus(new))

    return Subject("interference", train, since)


def _enough(rows: Sequence[Row]) -> None:
    if len(rows) < LEAST_RUNS:
        raise CarmaError(f"{len(rows)} jobs have run; {LEAST_RUNS} are needed")


def _first_since(rows: Sequence[Row], at: float) -> int:
    """The index of the first row submitted after `at`."""
    return next((n for n, row in enumerate(rows) if row["submitted_at"] > at), len(rows))


def _read(path: Path) -> Model | None:
    """None also for a damaged file, which will be replaced."""
    try:
        return decode_model(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path: Path, model: Model) -> None:
    """Atomically, and readable by the owner only: it has the names of users and jobs."""
    draft = path.with_suffix(".new")
    draft.touch(mode=0o600)
    draft.write_text(codec.encode(model), encoding="utf-8")
    draft.replace(path)
