"""Models trained on the server's own past: their data, schedule and results."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from math import log
from pathlib import Path
from random import Random
from typing import Any

import pytest

from carma_testing import a_job, a_spec, changed
from carmad.config import Settings
from carmad.core.gpus.slowdown import beside
from carmad.core.jobs.attempt import GpuId, JobId
from carmad.core.jobs.findings import Company, Indicator, Loaded, Profile
from carmad.core.jobs.history import History, Submission
from carmad.core.jobs.job import Job
from carmad.core.jobs.recurrence import group
from carmad.core.jobs.states import JobState
from carmad.core.messages import Step, Tick
from carmad.installed import how_to_add
from carmad.learning import trained
from carmad.learning.features import INTERVAL_S
from carmad.learning.files import decode_model, load_shipped
from carmad.learning.models import Additive, Boosted, Lookup, Model, Node, Tree
from carmad.learning.trained import Models, missing_packages
from carmad.store import codec
from carmad.store.sql import SqlStore
from estimators.duration import additive

pytest.importorskip("interpret", reason="training needs carma-gpu[policies]")

from carmad.learning.training import forest, interference, lucid, retraining
from carmad.learning.training.retraining import retrain
from tests.owners import who
from tests.waiting import PATIENCE_S

DAY_S = 86_400.0
BEGIN = 20_000 * DAY_S
SECONDS = {"ada": 100.0, "bob": 4000.0}
LEAF = Tree("a class", "a test", ("x",), ("tiny",), (Node((1,)),), 1, 0.0)


def ended(id: int, at: float, user: str, seconds: float, **changes: Any) -> Job:
    spec = a_spec(user=user, name=f"{user}-{id % 3}")
    usual = {"state": JobState.SUCCEEDED, "submitted_at": at, "group": group(spec), "attempt": 1}
    usual |= {"started_at": at, "ended_at": at + seconds, "gpus": (GpuId("GPU-0"),)}
    return a_job(id, spec=spec, **usual | changes)


def commit(store: SqlStore, jobs: list[Job]) -> None:
    store.commit(Step((Tick(BEGIN),), tuple(jobs), (), ()))


def past(count: int = 240, days: float = 5, first: int = 1, begin: float = BEGIN) -> list[Job]:
    """Jobs of two users in turn, each with one duration."""
    users = list(SECONDS)
    gap = days * DAY_S / count
    return [
        ended(first + n, begin + n * gap, users[n % 2], SECONDS[users[n % 2]]) for n in range(count)
    ]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    with closing(SqlStore.open(tmp_path / "carma.db")) as opened:
        yield opened


# -- tables


def test_every_interval_that_is_over_is_counted() -> None:
    at = 10 * INTERVAL_S
    found, begin = retraining.count_submissions(
        [Submission(at + 1, 2), Submission(at + 599, 3, 3), Submission(at + 1300, 4)], at + 2401
    )
    assert begin == at
    assert found == [(4, 5), (0, 0), (1, 4), (0, 0)]
    assert retraining.count_submissions([], at) == ([], at)


def test_a_profile_that_the_job_itself_got_is_not_learned_from(store: SqlStore) -> None:
    known = Profile(30.0, 700, (Indicator("gpu_utilization", 0.5, 0.1),), of=JobId(1))
    commit(
        store,
        [
            ended(1, 10.0, "ada", 5.0, profile=replace(known, of=None)),
            ended(2, 20.0, "ada", 5.0, profile=known),
            a_job(3, state=JobState.CANCELLED, ended_at=30.0),
        ],
    )
    first, second = retraining.runs(store)
    assert first["duration_s"] == second["duration_s"] == 5.0
    assert "gpu_utilization" not in first and "peak_mib" not in first
    assert (second["gpu_utilization"], second["peak_mib"]) == (0.5, 700)


def test_all_pages_are_read_and_no_more_than_may_be(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, past(20))
    monkeypatch.setattr(retraining, "PAGE", 7)
    assert [row["submitted_at"] for row in retraining.runs(store)] == [
        j.submitted_at for j in past(20)
    ]
    monkeypatch.setattr(retraining, "MOST_RUNS", 9)
    assert [row["submitted_at"] for row in retraining.runs(store)] == [
        j.submitted_at for j in past(20)[-9:]
    ]


def test_nobodys_jobs_drown_the_others(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retraining, "MOST_OF_USER", 6)
    commit(store, past(20))
    flood = [ended(100 + n, BEGIN + n, "eve", 1.0) for n in range(60)]
    commit(store, flood)
    users = [row["user"] for row in retraining.runs(store)]
    assert {user: users.count(user) for user in users} == {"ada": 10, "bob": 10, "eve": 10}
    kept = [row["submitted_at"] for row in retraining.runs(store) if row["user"] == "eve"]
    assert kept == [job.submitted_at for job in flood[-10:]], "the latest"


def test_who_is_alone_is_learned_from_whole(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retraining, "MOST_OF_USER", 6)
    commit(store, [ended(1 + n, BEGIN + n, "ada", 1.0) for n in range(60)])
    assert len(retraining.runs(store)) == 60


# -- training


def test_too_little_is_told_of(store: SqlStore, tmp_path: Path) -> None:
    commit(store, past(10, days=1))
    said = list(retrain(store, tmp_path, BEGIN + 3 * DAY_S))
    assert [each.text for each in said] == [
        "throughput: 3.0 days are on record; 14 are needed",
        "duration: 10 jobs have run; 200 are needed",
        "forest: 10 jobs have run; 200 are needed",
        "interference: 0 step times beside others; 200 are needed",
    ]
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.long
def test_a_process_of_its_own_trains_what_predicts(store: SqlStore, tmp_path: Path) -> None:
    """From the daemon's side: files appear and disappear, and it receives the models."""
    now = time.time()
    commit(store, past(begin=now - 6 * DAY_S))
    told: list[Mapping[str, Model]] = []
    keeper = Models(tmp_path / "models", store, 7.0, told.append)
    assert keeper.load() == {}
    keeper.train_if_due()
    keeper.train_if_due()  # not again for a week
    assert [set(each) for each in told] == [{"duration", "forest"}], keeper.last_words
    there = {path.name for path in (tmp_path / "models").iterdir()}
    assert there == {"duration.json", "forest.json", "trained"}
    assert keeper.load() == told[0]
    not_trained, trained, of_groups, without_pairs = keeper.last_words
    assert without_pairs == "interference: 0 step times beside others; 200 are needed"
    assert trained.startswith("duration: trained on 240 rows; R² ")
    assert of_groups.startswith("forest: trained on 240 rows; median error (s) ")
    assert not_trained == "throughput: 6.0 days are on record; 14 are needed"
    assert (tmp_path / "models/duration.json").stat().st_mode & 0o777 == 0o600

    predictor = additive(Settings())
    bob, ada = (
        a_job(id, spec=a_spec(user=user, name=f"{user}-1"), submitted_at=now)
        for id, user in ((901, "bob"), (902, "ada"))
    )
    known = History()
    for user, seconds in SECONDS.items():
        known.by_user.add(who(user), seconds)
    of_ada, of_bob = (predictor.predict(job, known, told[0], now) for job in (ada, bob))
    assert of_ada and of_bob
    assert of_ada.source == of_bob.source == "additive"
    assert of_bob.seconds > 10 * of_ada.seconds, "as it is by a factor of 40"
    assert dict(of_bob.parts)["user_mean_s"] > 0 > dict(of_ada.parts)["user_mean_s"]


def met(dice: Random, busy: Callable[[float, float], float]) -> Company:
    """Beside a random other job, with the ratio that `busy` has of their SM activities."""
    loads = [Loaded((Indicator("sm_active", dice.random(), 0.0),), 0.1) for _ in range(2)]
    own, other = (load.indicators[0].mean for load in loads)
    neighbour = JobId(dice.randrange(1, 200))
    return Company(neighbour, busy(own, other), loads[0], loads[1], mps=False)


def test_the_ratio_of_jobs_that_share_is_learned_here(store: SqlStore, tmp_path: Path) -> None:
    dice = Random(0)
    jobs = [
        changed(job, company=tuple(met(dice, lambda own, other: 1 + own * other) for _ in "ab"))
        for job in past(150)
    ]
    commit(store, jobs)
    said = [each.text for each in retrain(store, tmp_path, BEGIN + 6 * DAY_S)]
    assert any(text.startswith("interference: trained on 300 rows; MAE ") for text in said), said
    model = decode_model((tmp_path / "interference.json").read_text("utf-8"))
    assert isinstance(model, Boosted)
    calm, hard = (
        beside(load, load, mps=False)
        for load in (Loaded((Indicator("sm_active", x, 0.0),), 0.1) for x in (0.1, 0.9))
    )
    assert model.predict(hard) > 1.5 > 1.2 > model.predict(calm)


def test_nobodys_reports_drown_the_others(store: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """From three users on, nobody has more than a third."""
    monkeypatch.setattr(retraining, "LEAST_MET", 1)
    dice = Random(0)
    many = {"ada": 100, "bob": 100, "eve": 5}
    jobs = [ended(n, BEGIN + n, list(many)[n % 3], 10.0) for n in range(1, 4)]

    def met_by(user: str) -> tuple[Company, ...]:
        return tuple(met(dice, lambda own, other: 99.0) for _ in range(many[user]))

    commit(store, [changed(job, company=met_by(job.spec.user)) for job in jobs])
    told = retraining.companies(store)
    assert len(told) == 3 * 5
    assert max(row.ratio for _, row in told) == 20


def test_a_pair_counts_once_for_a_user_with_its_median(store: SqlStore) -> None:
    pair = met(Random(0), lambda own, other: 1.5)
    jobs = [ended(n, BEGIN + n, "ada", 10.0) for n in range(1, 6)]
    ratios = (1.4, 1.5, 1.6, 19.0, 1.5)
    met_there = [(replace(pair, ratio=ratio),) for ratio in ratios]
    commit(store, [changed(job, company=its) for job, its in zip(jobs, met_there, strict=True)])
    ((_, row),) = retraining.companies(store)
    assert row.ratio == 1.5


def test_a_user_who_lies_does_not_bend_the_model(store: SqlStore) -> None:
    """Half of all reports, and as many as anyone's: all as high as a ratio can be."""
    dice = Random(0)
    jobs = [
        ended(n, BEGIN + n, user, 10.0)
        for n, user in enumerate(["ada", "bob", "eve", "eve"] * 60, 1)
    ]

    def ratio(user: str) -> Callable[[float, float], float]:
        return lambda own, other: 99.0 if user == "eve" else 1 + own * other

    by_job = [tuple(met(dice, ratio(job.spec.user)) for _ in "ab") for job in jobs]
    commit(store, [changed(job, company=its) for job, its in zip(jobs, by_job, strict=True)])
    model = interference.train_and_judge([row for _, row in retraining.companies(store)], "", BEGIN)
    for level in (0.2, 0.5, 0.8):
        load = Loaded((Indicator("sm_active", level, 0.0),), 0.1)
        assert model.predict(beside(load, load, mps=False)) == pytest.approx(1 + level**2, abs=0.5)


def test_traffic_does_not_keep_apart_what_users_say_of_the_same_pair() -> None:
    """It is in MiB/s, and was known to some of them only."""
    values = {"own.gpu_utilization.mean": 0.5, "other.gpu_utilization.mean": 0.5}
    traffic = {"own.network_tx_mib_s.mean": 90.0}
    rows = [
        interference.Beside(values | (traffic if user == "eve" else {}), ratio, user, user)
        for user, ratio in (("ada", 1.2), ("bob", 1.3), ("eve", 19.0))
    ]
    assert [row.ratio for row in interference.consensus(rows)] == [1.3] * 3


def test_runs_of_the_same_two_jobs_are_one_pair(store: SqlStore) -> None:
    """Or a model would be judged by pairs that it has seen."""
    dice = Random(0)
    pair = met(dice, lambda own, other: 1.5)
    back = replace(pair, own=pair.other, other=pair.own)
    first, again, *_ = past(10)
    commit(store, [changed(first, company=(pair,)), changed(again, company=(back,))])
    assert len({row.pair for _, row in retraining.companies(store)}) == 1


def test_a_ratio_that_nothing_explains_is_not_modelled(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lucid, "train_duration", lambda rows, source, at: always(100.0, at))
    dice = Random(0)
    jobs = [
        changed(job, company=(met(dice, lambda own, other: 1 + dice.random()),))
        for job in past(240)
    ]
    commit(store, jobs)
    *_, said = retrain(store, tmp_path, BEGIN + 6 * DAY_S)
    assert said.text.startswith(
        "interference: on pairs that it has not seen, a model is hardly better"
    )
    assert not (tmp_path / "interference.json").exists()


def test_a_model_that_no_longer_holds_is_reported(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retraining, "LEAST_INTERVALS", 100)
    monkeypatch.setattr(lucid, "train_duration", lambda rows, source, at: always(100.0, at))
    monkeypatch.setattr(lucid, "train_traffic", lambda *words: always(1.0, words[-1]))
    monkeypatch.setattr(forest, "train", lambda rows, source, at: of_groups(110.0, at))
    monkeypatch.setitem(SECONDS, "bob", 110.0)
    commit(store, past())
    first = list(retrain(store, tmp_path, BEGIN + 5 * DAY_S))
    assert not any(each.alarming for each in first)
    assert "the last model's" not in first[1].text

    commit(store, past(20, days=1, first=1000, begin=BEGIN + 6 * DAY_S))
    too_soon = list(retrain(store, tmp_path, BEGIN + 5 * DAY_S + 1))
    assert not any(each.alarming for each in too_soon)  # 20 prove nothing

    monkeypatch.setitem(SECONDS, "ada", 1000.0)
    monkeypatch.setitem(SECONDS, "bob", 900.0)
    commit(store, past(60, days=2, first=2000, begin=BEGIN + 7 * DAY_S))
    of_throughput, alarm, of_duration, other, of_forest, _ = retrain(
        store, tmp_path, BEGIN + 9 * DAY_S
    )
    assert other.alarming and not of_forest.alarming
    told = "median error (s) was 5 when the model was trained, and 790 since"
    assert other.text == f"forest has drifted: the {told}"
    assert alarm.alarming and not of_duration.alarming and not of_throughput.alarming
    model = decode_model((tmp_path / "duration.json").read_text())
    (name, then), _, (of_last, since) = model.errors
    assert of_last == f"the last model's {name}"
    assert since == pytest.approx(log(9), abs=0.2)
    told = f"{name} was {then:.3g} when the model was trained, and {since:.3g} since"
    assert alarm.text == f"duration has drifted: the {told}"
    counted = decode_model((tmp_path / "throughput.json").read_text())
    assert dict(counted.errors)["the last model's MAE"] == pytest.approx(1 - 80 / 576, abs=0.02)


def test_a_damaged_model_is_ignored_and_replaced(
    store: SqlStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "duration.json").write_text("nonsense")
    (tmp_path / "leaf.json").write_text(codec.encode(LEAF))
    assert Models(tmp_path, store, 7.0, lambda found: None).load() == {"leaf": LEAF}
    assert "duration.json is not a model" in caplog.text
    assert retraining._read(tmp_path / "duration.json") is None


def always(value: float, at: float) -> Additive:
    """A model with only one answer, which is off by 10 %, or by a factor of 2."""
    model = Additive("", "a test", log(value), (), (), "log", 240, at)
    name = lucid.measure_duration(model, [{}], [{"duration_s": 1.0}])[-1][0]
    return replace(model, errors=((name, 0.1), ("MAE", 2.0)))


def of_groups(seconds: float, at: float) -> Lookup:
    """A model that says the same of all jobs of `past`."""
    groups = {job.group for job in past()}
    errors = (("median error (s)", 5.0),)
    return Lookup("", "a test", dict.fromkeys(groups, seconds), 240, at, errors)


# -- when


def test_it_is_due_once_in_so_many_days(store: SqlStore, tmp_path: Path) -> None:
    begun: list[float] = []

    class Counted(Models):
        def train(self) -> None:
            begun.append(time.time())

    trained = tmp_path / "trained"
    for days, age_days, due in ((7, None, True), (7, 6.9, False), (7, 7.1, True), (0, 99, False)):
        trained.unlink(missing_ok=True)
        if age_days is not None:
            trained.touch()
            os.utime(trained, (time.time() - age_days * DAY_S,) * 2)
        begun.clear()
        Counted(tmp_path, store, days, lambda found: None).train_if_due()
        assert bool(begun) is due, (days, age_days)


def test_what_failed_is_tried_again_after_a_day_and_leaves_nothing(
    store: SqlStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[float] = []

    class Failing(Models):
        def _train(self) -> bool:
            begun.append(time.time())
            return False

    keeper = Failing(tmp_path / "models", store, 7.0, lambda found: None)
    keeper.train_if_due()
    keeper.train_if_due()
    assert len(begun) == 1 and keeper.last_training_at is None
    (tmp_path / "models/training").mkdir()
    (tmp_path / "models/training/past.db").touch()
    (tmp_path / "models/duration.new").touch()
    later = time.monotonic() + DAY_S
    monkeypatch.setattr(trained.time, "monotonic", lambda: later)
    keeper.train_if_due()
    assert len(begun) == 2
    assert keeper.load() == {}
    assert not list((tmp_path / "models").iterdir())


def test_without_the_packages_one_line_says_so(
    store: SqlStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert missing_packages() == ""
    monkeypatch.setattr(trained, "NEEDED", {"interpret_of_nobody": "interpret-core"})
    keeper = Models(tmp_path / "models", store, 7.0, lambda found: None)
    with caplog.at_level(logging.INFO):
        keeper.train_if_due()
        keeper.train_if_due()
    needs = f"interpret-core ({how_to_add('policies')})"
    assert caplog.messages == [f"no models are trained: that needs {needs}"]


def test_a_daemon_that_stops_waits_for_no_training(store: SqlStore, tmp_path: Path) -> None:
    commit(store, past())
    told: list[object] = []
    keeper = Models(tmp_path / "models", store, 7.0, told.append)
    at_it = threading.Thread(target=keeper.train)
    at_it.start()
    while not list((tmp_path / "models").glob("training/past.db")):
        time.sleep(0.01)
    keeper.stop()
    at_it.join(PATIENCE_S)
    assert not at_it.is_alive()
    assert told == []
    assert not (tmp_path / "models/training").exists()


# -- what predicts


def test_without_a_model_the_rules_of_the_history_hold() -> None:
    predictor = additive(Settings())
    job = a_job(spec=a_spec(user="ada"))
    known = History()
    assert predictor.predict(job, known, {}, 0.0) is None
    known.by_user.add(who("ada"), 50.0)
    said = predictor.predict(job, known, {"duration": LEAF}, 0.0)
    assert said is not None and (said.seconds, said.source) == (50.0, "history")
    sure = a_job(spec=a_spec(user="ada", expected_s=7.0))
    word = predictor.predict(sure, known, {}, 0.0)
    assert word is not None and (word.seconds, word.source) == (7.0, "declared")


def test_what_is_shipped_can_be_read() -> None:
    for name, model in load_shipped().items():
        assert model.trained_at == 0, name
        assert model.source, name
        assert model.errors, name
