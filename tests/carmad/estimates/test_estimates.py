"""Estimating waiting jobs: users in turn, identical jobs once, and failures."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from carma_testing import a_job, a_server, a_spec
from carmad import registry
from carmad.config import Estimation, Settings
from carmad.core.jobs.attempt import JobId
from carmad.core.jobs.findings import Estimate, Refusal, StageTimes
from carmad.core.jobs.layout import Layout, Stage
from carmad.core.jobs.spec import After, ArrayTask, JobSpec, WarnSignal
from carmad.core.jobs.states import JobState
from carmad.core.ports import Server
from carmad.errors import CarmaError
from carmad.estimates import asking as module
from carmad.estimates.asking import Answer, Estimates, ask, ask_all, guesses, patient
from carmad.options import OPTIONS, Option
from tests.waiting import PATIENCE_S, until


class Asked:
    """An estimator that answers on request, and a record of its delivered answers."""

    def __init__(self) -> None:
        self.specs: list[JobSpec] = []
        self.late: set[str] = set()  # scripts that take more time than there is
        self.patiently: list[str] = []
        self.abandoned: dict[str, threading.Event] = {}  # by script, of the last question
        self.told: list[tuple[JobId, Answer]] = []
        self.go_on, self.go_on_patiently = threading.Event(), threading.Event()
        self.go_on_patiently.set()
        self.estimates = Estimates(self.ask, lambda job, answer: self.told.append((job.id, answer)))

    def ask(self, spec: JobSpec, patiently: bool, abandoned: threading.Event) -> Answer:
        self.abandoned[spec.argv[-1]] = abandoned
        if patiently:
            self.patiently.append(spec.argv[-1])
        else:
            self.specs.append(spec)
        assert (self.go_on_patiently if patiently else self.go_on).wait(PATIENCE_S)
        if spec.argv[-1] in self.late and not patiently:
            return Refusal("it took no step", "look", late=True)
        return Estimate(len(self.specs), spec.argv[-1])

    def put(self, id: int, script: str = "a.py", **spec: object) -> None:
        self.estimates.put(
            a_job(id, state=JobState.PENDING, spec=a_spec(argv=("python", script), **spec))
        )

    @property
    def jobs(self) -> list[int]:
        return [job for job, _ in self.told]


@pytest.fixture
def asked() -> Iterator[Asked]:
    asked = Asked()
    yield asked
    asked.go_on.set()
    asked.go_on_patiently.set()
    asked.estimates.close()


@pytest.mark.parametrize("memory_mib", [None, 4000])
def test_the_tasks_of_an_array_share_one_answer(asked: Asked, memory_mib: int | None) -> None:
    for index in range(20):
        task = ArrayTask(JobId(1), index)
        name, stdout = f"run {index}", f"{index}.out"
        asked.put(1 + index, array=task, stdout=stdout, name=name, memory_mib=memory_mib)
    until(lambda: asked.specs)
    asked.go_on.set()
    until(lambda: len(asked.told) == 20)
    assert len(asked.specs) == 1
    assert {answer for _, answer in asked.told} == {Estimate(1, "a.py")}
    asked.put(30, memory_mib=memory_mib)
    until(lambda: len(asked.told) == 21)
    assert len(asked.specs) == 1, "nor is it asked for one that comes later"


@pytest.mark.parametrize(
    "other",
    [
        {"script": "b.py"},
        {"uid": 1001},
        {"cwd": "/elsewhere"},
        {"conda_env": "other"},
        {"env": (("BATCH", "64"),)},
        {"gpus": 2},
    ],
)
def test_what_may_need_other_memory_is_asked_anew(asked: Asked, other: dict[str, object]) -> None:
    asked.go_on.set()
    asked.put(1)
    asked.put(2, **other)  # type: ignore[arg-type]
    until(lambda: len(asked.told) == 2)
    assert len(asked.specs) == 2


def changed(option: Option) -> object:
    """A value other than the default."""
    parts = {
        "after": (After(JobId(7)),),
        "array": ArrayTask(JobId(1), 3),
        "layout": Layout((Stage(),)),
        "stage_times": (StageTimes(0.1, 0.2, 0.3),),
        "warn": WarnSignal(12, 60.0),
    }
    if isinstance(option.default, bool):
        return not option.default
    number = {"_s": 60.0, "_at": 60.0, "_mib": 4096, "gpus": 2, "batch_size": 2, "nice": 2}
    numbers = (value for end, value in number.items() if option.name.endswith(end))
    return parts.get(option.name) or next(numbers, "x")


@pytest.mark.parametrize("name", sorted({field.name for field in fields(JobSpec)} & {*OPTIONS}))
def test_a_sweep_over_an_option_asks_once_unless_it_changes_the_memory(
    asked: Asked, name: str
) -> None:
    asked.go_on.set()
    asked.put(1)
    asked.put(2, **{name: changed(OPTIONS[name])})
    until(lambda: len(asked.told) == 2)
    assert len(asked.specs) == (2 if OPTIONS[name].memory else 1)


def test_jobs_with_unlike_deadlines_are_traced_once(asked: Asked) -> None:
    asked.go_on.set()
    for id in range(1, 6):
        asked.put(id, deadline_at=1000.0 * id)
    until(lambda: len(asked.told) == 5)
    assert len(asked.specs) == 1


def test_an_answer_ages(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script may have changed by now."""
    asked.go_on.set()
    asked.put(1)
    until(lambda: len(asked.told) == 1)
    monkeypatch.setattr(module, "FRESH_S", 0.0)
    asked.put(2)
    until(lambda: len(asked.told) == 2)
    assert len(asked.specs) == 2


def test_what_a_job_taught_is_asked_for(asked: Asked) -> None:
    asked.go_on.set()
    asked.put(1)
    until(lambda: len(asked.told) == 1)
    asked.estimates.end(JobId(1))
    asked.put(2)
    until(lambda: len(asked.told) == 2)
    assert len(asked.specs) == 2


def test_the_end_of_a_job_opens_no_question_twice(asked: Asked) -> None:
    """Tasks that are over sooner than their trial, one after the other."""
    for id in range(1, 5):
        asked.put(id)
        until(lambda id=id: any(id in one.jobs for one in asked.estimates._asked.values()))
        asked.estimates.end(JobId(id - 1))
    asked.go_on.set()
    until(lambda: asked.told)
    assert (asked.jobs, len(asked.specs)) == ([4], 1)


def test_a_job_that_starts_and_is_over_at_once_is_not_asked_about(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAUNCH_S", "PAUSE_S"):
        monkeypatch.setattr(module, name, PATIENCE_S)
    asked.put(1)
    until(lambda: asked.estimates._wanted[JobId(1)])
    asked.estimates.note_launch(JobId(1))
    asked.estimates.end(JobId(1))
    asked.go_on.set()
    monkeypatch.setattr(module, "LAUNCH_S", 0.0)
    for id in (2, 3):  # which nothing launches
        asked.put(id, f"{id}.py")
    until(lambda: len(asked.told) == 2)
    assert sorted(spec.argv[-1] for spec in asked.specs) == ["2.py", "3.py"]


def test_one_that_fails_leaves_no_job_without_an_answer() -> None:
    told: list[Answer] = []
    estimates = Estimates(lambda *asked: 1 // 0, lambda job, answer: told.append(answer))  # type: ignore[arg-type,return-value]
    for id in (1, 2):
        estimates.put(a_job(id, state=JobState.PENDING, spec=a_spec()))
    until(lambda: len(told) == 2)
    estimates.close()
    assert all(isinstance(answer, Refusal) and "ZeroDivisionError" in answer.why for answer in told)


def test_a_late_answer_follows_and_nobody_waits_for_it(asked: Asked) -> None:
    """Identical jobs share the second answer, too."""
    asked.late = {"slow.py"}
    asked.go_on.set()
    for id in (1, 2, 3):
        asked.put(id, "slow.py")
    asked.put(4, "quick.py", uid=2)
    until(lambda: len(asked.told) == 7)
    assert asked.patiently == ["slow.py"]
    for id in (1, 2, 3):
        first, second = (answer for job, answer in asked.told if job == id)
        assert isinstance(first, Refusal) and isinstance(second, Estimate)


def test_a_job_that_ended_is_not_asked_about_patiently(asked: Asked) -> None:
    asked.late = {"1.py", "2.py"}
    asked.go_on.set()
    asked.go_on_patiently.clear()
    asked.put(1, "1.py")
    until(lambda: asked.patiently)
    asked.put(2, "2.py")
    until(lambda: len(asked.told) == 2)
    asked.estimates.end(JobId(2))
    asked.go_on_patiently.set()
    asked.put(3, "3.py")
    until(lambda: len(asked.told) == 4)
    assert asked.patiently == ["1.py"]


@pytest.mark.parametrize("is_over", [Estimates.end, Estimates.drop])
def test_a_job_that_is_over_when_its_late_answer_comes_is_not_asked_about_again(
    asked: Asked, is_over: Callable[[Estimates, JobId], None]
) -> None:
    asked.late = {"1.py", "2.py"}
    asked.put(1, "1.py")
    until(lambda: asked.specs)
    is_over(asked.estimates, JobId(1))
    asked.go_on.set()
    asked.put(2, "2.py")
    until(lambda: len(asked.told) == 2)
    assert (asked.patiently, asked.jobs) == (["2.py"], [2, 2])


def test_a_question_is_abandoned_with_the_last_job_that_asked_it(asked: Asked) -> None:
    for id in (1, 2):
        asked.put(id)
    until(lambda: asked.specs and all(map(asked.estimates._wanted.get, (1, 2))))
    asked.estimates.drop(JobId(1))
    assert not asked.abandoned["a.py"].is_set()
    asked.estimates.drop(JobId(2))
    assert asked.abandoned["a.py"].is_set()
    asked.put(3)
    until(lambda: len(asked.specs) == 2)
    asked.go_on.set()
    until(lambda: asked.told)
    assert asked.jobs == [3], "it got an answer of its own"


def test_a_job_that_comes_again_is_not_given_the_abandoned_answer() -> None:
    """Cancelled and requeued at once."""
    begun: list[threading.Event] = []
    told: list[Answer] = []
    go_on = threading.Event()

    def ask(spec: JobSpec, patiently: bool, abandoned: threading.Event) -> Answer:
        begun.append(abandoned)
        if len(begun) == 1:
            until(lambda: len(begun) == 2)
            return Refusal("nobody waits for it", "look")
        assert go_on.wait(PATIENCE_S)
        return Estimate(9, "trace")

    estimates = Estimates(ask, lambda job, answer: told.append(answer))
    job = a_job(1, state=JobState.PENDING, spec=a_spec())
    estimates.put(job)
    until(lambda: begun)
    estimates.drop(job.id)
    estimates.put(job)
    until(lambda: len(begun) == 2)
    threading.Timer(0.3, go_on.set).start()
    until(lambda: told)
    estimates.close()
    assert told == [Estimate(9, "trace")]


def test_the_next_daemon_asks_patiently_at_once(asked: Asked) -> None:
    asked.estimates.put(a_job(1, estimate_late=True, spec=a_spec(argv=("python", "a.py"))))
    until(lambda: asked.told)
    assert (asked.patiently, asked.specs) == (["a.py"], [])


def test_there_is_no_third_answer(asked: Asked) -> None:
    """Neither from this daemon nor from the next."""
    told: list[Answer] = []
    late = Refusal("it was slow", "look", late=True)
    estimates = Estimates(lambda *asked: late, lambda job, answer: told.append(answer))
    estimates.put(a_job(1, state=JobState.PENDING, spec=a_spec()))
    until(lambda: len(told) == 2)
    estimates.close()
    assert told == [late, replace(late, late=False)]


def test_few_answers_are_kept(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ANSWERS_KEPT", 2)
    asked.go_on.set()
    for id, script in enumerate(("a", "b", "c", "a"), 1):
        asked.put(id, script)
        until(lambda count=id: len(asked.told) == count)
    assert len(asked.specs) == 4


def test_one_users_thousand_jobs_hold_up_nobody_elses_one(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAUNCH_S", 0.0)
    for id in range(1, 1001):
        asked.put(id, f"{id}.py", uid=1)
    asked.put(1001, "another.py", uid=2)
    begun = {"1.py", "2.py", "another.py"}
    until(lambda: {spec.argv[-1] for spec in asked.specs} == begun)
    asked.go_on.set()
    until(lambda: len(asked.told) == 1001)


def test_one_that_says_itself_what_it_needs_does_not_wait_for_others(asked: Asked) -> None:
    declared: list[JobId] = []
    estimates = Estimates(
        lambda spec, *rest: (
            Estimate(spec.memory_mib, "declared") if spec.memory_mib else asked.ask(spec, *rest)
        ),
        lambda job, answer: declared.append(job.id),
    )
    for id in range(1, 10):
        estimates.put(a_job(id, state=JobState.PENDING, spec=a_spec(argv=(f"{id}",))))
    estimates.put(a_job(10, state=JobState.PENDING, spec=a_spec(memory_mib=9)))
    until(lambda: declared)
    assert declared == [10]
    asked.go_on.set()
    estimates.close()


def test_a_cancelled_job_is_not_asked_about(asked: Asked) -> None:
    for id in range(1, 6):
        asked.put(id, f"{id}.py")
    until(lambda: len(asked.specs) == module.EACH)
    for id in (3, 4, 99):
        asked.estimates.end(JobId(id))
    asked.go_on.set()
    until(lambda: len(asked.told) == 3)
    asked.estimates.close()
    assert sorted(asked.jobs) == [1, 2, 5]


def test_closing_leaves_the_rest_to_the_next_daemon(asked: Asked) -> None:
    for id in range(1, 10):
        asked.put(id, f"{id}.py")
    until(lambda: len(asked.specs) == module.EACH)
    threading.Timer(0.05, asked.go_on.set).start()
    asked.estimates.close()
    assert len(asked.told) < 9


class Scripted:
    """Installed estimators by name: an answer, or an error to raise."""

    def __init__(self, **answers: Answer | Exception) -> None:
        self.answers = answers
        self.servers: set[int] = set()

    def names(self, kind: str) -> list[str]:
        return sorted(self.answers)

    def estimator(self, name: str, settings: Settings, server: Server) -> Scripted:
        self.servers.add(id(server))
        found = self.answers[name]
        if isinstance(found, CarmaError):
            raise found
        one = Scripted(it=found)
        one.servers = self.servers
        return one

    def estimate(self, spec: JobSpec) -> Answer:
        (found,) = self.answers.values()
        if isinstance(found, Exception):
            raise found
        return found

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(registry, "names", self.names)
        monkeypatch.setattr(registry, "estimator", self.estimator)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (CarmaError("'it' cannot be loaded", "install it"), "'it' cannot be loaded"),
        (TimeoutError("it gave no estimate within 20 s"), "it gave no estimate within 20 s"),
        (ZeroDivisionError("oops"), "it failed: ZeroDivisionError('oops')"),
    ],
)
def test_what_goes_wrong_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, error: Exception, why: str
) -> None:
    Scripted(it=error).install(monkeypatch)
    answer = ask("it", Settings(), a_server(), a_spec())
    assert isinstance(answer, Refusal)
    assert (answer.why, answer.source) == (why, "it")


def test_what_an_exception_says_is_kept_short_and_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(it=TimeoutError("\ud800" * 5000)).install(monkeypatch)
    answer = ask("it", Settings(), a_server(), a_spec())
    assert isinstance(answer, Refusal) and answer.why == "?" * 1000


@pytest.mark.parametrize("trouble", [TimeoutError("it hangs"), Refusal("it hangs", "auto")])
def test_the_users_own_word_stands(
    monkeypatch: pytest.MonkeyPatch, trouble: Answer | Exception
) -> None:
    Scripted(auto=trouble, horus=trouble).install(monkeypatch)
    answer = ask("auto", Settings(), a_server(), a_spec(memory_mib=900))
    assert replace(answer, seconds=0.0) == Estimate(900, "declared", firm=True, notes=("it hangs",))
    for name, mib in (("auto", None), ("horus", 900)):
        other = ask(name, Settings(), a_server(), a_spec(memory_mib=mib))
        assert isinstance(other, Refusal)


def test_the_estimator_that_decides_is_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Estimate(8_000, "trace", seconds=1.5)
    scripted = Scripted(
        auto=replace(trace, notes=("not history: no run",)),
        history=Refusal("no run", "history"),
        trace=trace,
        horus=Estimate(9_000, "horus"),
    )
    scripted.install(monkeypatch)

    def chosen(estimator: str) -> dict[str, bool]:
        found = guesses(Settings(estimator=estimator), a_server(), a_spec())
        return {guess.source: guess.chosen for guess in found}

    assert chosen("auto") == {"history": False, "horus": False, "trace": True}
    assert chosen("horus") == {"history": False, "horus": True, "trace": False}
    assert not any(chosen("history").values())
    scripted.servers.clear()
    found = guesses(Settings(), server := a_server(), a_spec())
    assert scripted.servers == {id(server)}, "they share their looks"
    assert [guess.seconds for guess in found if guess.chosen] == [1.5]


def test_an_explanation_that_fails_costs_no_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    Scripted(horus=Estimate(9_000, "horus")).install(monkeypatch)
    broken = SimpleNamespace(explain=lambda spec: 1 // 0)
    monkeypatch.setattr(module.registry, "estimators_that", lambda *asked: [broken])
    found, explanation = ask_all(
        Settings(estimator="horus"), replace(a_server(), explain=True), a_spec()
    )
    assert [guess.chosen for guess in found] == [True]
    assert explanation is None


def test_the_daemon_loads_nothing_that_it_seldom_needs() -> None:
    """Neither itself nor by loading the estimators: torch alone takes seconds and 200 MiB."""
    words = """
import sys
import carmad.daemon.main
from importlib.metadata import entry_points
for point in entry_points(group="carma.estimators"):
    if point.value.startswith("estimators."):
        point.load()
print(*{"torch", "numpy", "sklearn", "timm"} & sys.modules.keys())
"""
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_patience_is_never_less_than_what_the_queue_has() -> None:
    for within_s, patient_s in ((10.0, 60.0), (90.0, 60.0)):
        settings = Settings(estimation=Estimation(within_s=within_s, patient_s=patient_s))
        assert patient(settings).estimation.within_s == max(within_s, patient_s)
        assert patient(settings, 5.0).estimation.within_s == 5.0, "as the user says"


def test_estimates_without_a_daemon_need_no_server_and_no_database() -> None:
    code = "import sys, carmad.api.guesses; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"fastapi", "sqlalchemy", "torch"} & set(ran.stdout.split())
