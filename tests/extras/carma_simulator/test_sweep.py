"""Sweeps of simulations: order, parallel processes, the cache, failures and Ctrl-C."""

from __future__ import annotations

import io
import os
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest
from rich.console import Console

from carma_simulator import run, sweep
from carma_simulator.commands import simulate
from carma_simulator.experiment import Experiment, Outcome, Physics, Rejected, Task, Timeline, Trace
from carma_simulator.hardware import Cluster, Node
from carma_simulator.run import Progress
from carma_simulator.sweep import KEPT_DAYS, Cache, cache_keys
from carmad.config import Collocation, Settings
from carmad.errors import CarmaError
from carmad.gpu.kinds import GpuKind

CARD = GpuKind("card", memory_mib=40_960, idle_w=50, max_w=400, speed=1.0)
CLUSTER = Cluster((Node("node", CARD, 2),))
TRACE = Trace("three", tuple(Task(name=n, submit_s=0.0, duration_s=60.0) for n in "abc"))
ONE = Experiment(TRACE, CLUSTER)


def seeds(*numbers: int) -> list[Experiment]:
    return [replace(ONE, seed=number) for number in numbers]


def outcome(experiment: Experiment) -> Outcome:
    """An empty outcome that identifies its experiment."""
    return Outcome(
        trace=experiment.trace.name,
        policy=experiment.settings.policy,
        estimator=experiment.estimator,
        interference=experiment.interference,
        seed=experiment.seed,
        cluster=experiment.cluster,
        jobs=(),
        gpus=(),
        timeline=Timeline(*(array("d", [0.5]) for _ in range(9))),
        makespan_s=100.0,
        events=0,
        decisions=0,
        wall_s=0.0,
    )


class Simulator:
    """Counts its calls, in this process."""

    def __init__(self) -> None:
        self.seeds: list[int] = []

    def __call__(self, experiment: Experiment, watch: object) -> Outcome:
        self.seeds.append(experiment.seed)
        return outcome(experiment)


@pytest.fixture
def simulator(monkeypatch: pytest.MonkeyPatch) -> Simulator:
    fake = Simulator()
    monkeypatch.setattr(sweep, "simulate", fake)
    return fake


def swept(experiments: Sequence[Experiment], store: Cache | None) -> list[int]:
    return [found.seed for _, found in sweep.sweep(experiments, 1, store)]


def plugin(directory: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> Path:
    """Installs a policy called mine, and says where its code is."""
    info = directory / "my_policy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: my_policy\nVersion: 1\n", encoding="utf-8")
    entry = "[carma.policies]\nmine = my_policy:mine\n"
    (info / "entry_points.txt").write_text(entry, encoding="utf-8")
    module = directory / "my_policy.py"
    module.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(directory)
    return module


# -- the cache


def test_what_is_known_is_not_simulated_again(simulator: Simulator, tmp_path: Path) -> None:
    store = Cache(tmp_path / "cache")
    assert swept(seeds(1, 2), store) == [1, 2]
    assert swept(seeds(3, 2, 4), store) == [3, 2, 4]
    assert simulator.seeds == [1, 2, 3, 4]


def test_an_outcome_comes_back_as_it_was(simulator: Simulator, tmp_path: Path) -> None:
    store = Cache(tmp_path)
    first, again = (list(sweep.sweep([ONE], 1, store)) for _ in range(2))
    assert first == again == [(ONE, outcome(ONE))]


def test_without_a_cache_all_are_simulated(simulator: Simulator) -> None:
    assert swept(seeds(1), None) == swept(seeds(1), None)
    assert simulator.seeds == [1, 1]


@pytest.mark.parametrize(
    "other",
    [
        replace(ONE, seed=1),
        replace(ONE, estimator="oracle"),
        replace(ONE, interference="none"),
        replace(ONE, interference="conserving:2.06"),
        replace(ONE, physics=Physics(oom_s=6.0)),
        replace(ONE, settings=Settings(policy="rr")),
        replace(ONE, settings=Settings(collocation=Collocation(mps=True))),
        replace(ONE, cluster=Cluster((Node("node", CARD, 3),))),
        replace(ONE, cluster=Cluster((Node("node", replace(CARD, speed=1.1), 2),))),
        replace(ONE, trace=replace(TRACE, tasks=TRACE.tasks[:2])),
        replace(ONE, trace=replace(TRACE, tasks=(*TRACE.tasks[:2], replace(TRACE.tasks[2])))),
        replace(ONE, trace=replace(TRACE, rejected=(Rejected(7, "no GPUs"),))),
    ],
)
def test_whatever_differs_is_another_experiment(other: Experiment) -> None:
    first, second = cache_keys([ONE, other])
    assert (first == second) is (other == ONE), "equal content has an equal key, and no other has"


def test_a_file_of_measured_pairs_counts_by_its_content(tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    measured = replace(ONE, interference=f"measured:{pairs}")
    pairs.write_text("one", encoding="utf-8")
    before = cache_keys([measured])
    assert cache_keys([measured]) == before
    pairs.write_text("two", encoding="utf-8")
    assert cache_keys([measured]) != before


def test_other_code_means_other_outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The author of a plugin edits a policy and wants to see the effect."""
    without = cache_keys([ONE])
    module = plugin(tmp_path, monkeypatch, "def mine(settings): ...")
    before = cache_keys([ONE])
    assert cache_keys([ONE]) == before != without
    module.write_text("", encoding="utf-8")
    assert cache_keys([ONE]) != before


@pytest.mark.parametrize("spoilt", [b"", b"\x00" * 40, b"half"])
def test_a_spoilt_file_is_replaced(simulator: Simulator, tmp_path: Path, spoilt: bytes) -> None:
    store = Cache(tmp_path)
    swept(seeds(1), store)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] if spoilt == b"half" else spoilt)
    assert swept(seeds(1), store) == [1]
    assert file.read_bytes() == whole
    assert simulator.seeds == [1, 1]
    assert list(tmp_path.iterdir()) == [file], "nothing else is left behind"


def test_a_cache_that_cannot_be_written_is_done_without(
    simulator: Simulator, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert swept(seeds(1, 2), Cache(tmp_path / "file" / "cache")) == [1, 2]


def test_nobody_elses_file_is_read(
    simulator: Simulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Cache(tmp_path)
    swept(seeds(1), store)
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    assert store.get(cache_keys(seeds(1))[0]) is None


def test_what_nobody_asks_for_is_forgotten(simulator: Simulator, tmp_path: Path) -> None:
    store = Cache(tmp_path)
    swept(seeds(1, 2), store)
    long_ago = time.time() - (KEPT_DAYS + 1) * 86_400
    for key in cache_keys(seeds(1, 2)):
        os.utime(tmp_path / key, (long_ago, long_ago))
    swept(seeds(1), store)  # asked for: it is as good as new
    swept(seeds(3), store)
    assert {path.name for path in tmp_path.iterdir()} == set(cache_keys(seeds(1, 3)))


# -- progress


def test_progress_is_in_simulated_time_and_in_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "REPORTED_S", 0.0)
    seen: list[Progress | None] = []
    list(sweep.sweep([ONE], 1, watch=lambda _, now: seen.append(now)))
    *told, last = seen
    assert last is None, "it has ended"
    assert [now for now in told if now] == sorted(now for now in told if now)
    assert [(now.ended, now.jobs) for now in (told[0], told[-1]) if now] == [(0, 3), (3, 3)]


def test_processes_tell_of_their_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = (
        "import time\nfrom policies.builtin import exclusive\n"
        "def mine(settings):\n    time.sleep(0.6)\n    return exclusive(settings)\n"
    )
    plugin(tmp_path, monkeypatch, slow)
    seen: list[tuple[str, bool]] = []
    asked = under("mine", "magm")
    watch = lambda e, now: seen.append((e.settings.policy, now is None))  # noqa: E731
    list(sweep.sweep(asked, 2, watch=watch))
    assert [end for policy, end in seen if policy == "mine"][-1] is True
    assert ("mine", False) in seen and ("magm", True) in seen


def test_known_outcomes_count_as_progress(simulator: Simulator, tmp_path: Path) -> None:
    list(sweep.sweep(seeds(1), 1, Cache(tmp_path)))
    ended: list[int] = []
    list(sweep.sweep(seeds(1, 2), 1, Cache(tmp_path), lambda one, now: ended.append(one.seed)))
    assert ended == [1, 2]


def test_progress_is_drawn_only_on_a_terminal() -> None:
    def drawn(terminal: bool) -> str:
        screen = Console(file=io.StringIO(), force_terminal=terminal, width=80)
        with simulate.show_progress(2, screen) as watch:
            watch(ONE, Progress(3 * 86_400.0, 1234, 5755))
            watch(replace(ONE, seed=1), None)
        assert isinstance(screen.file, io.StringIO)
        return " ".join(screen.file.getvalue().split())

    text = drawn(terminal=True)
    assert "1,234/5,755 jobs" in text and "at 3.0 days" in text and "1/2 runs" in text
    assert drawn(terminal=False) == ""


# -- failures


def test_an_experiment_that_fails_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(experiment: Experiment, watch: object) -> Outcome:
        if experiment.seed == 2:
            raise CarmaError("the policy failed", "mend it")
        return outcome(experiment)

    monkeypatch.setattr(sweep, "simulate", fail)
    running = sweep.sweep(seeds(1, 2, 3), 1)
    assert next(running)[1].seed == 1
    with pytest.raises(CarmaError) as caught:
        next(running)
    assert caught.value.message == "magm (estimator none, seed 2): the policy failed"
    assert caught.value.hint == "mend it"


def test_a_defect_keeps_its_traceback_and_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(experiment: Experiment, watch: object) -> Outcome:
        raise ZeroDivisionError

    monkeypatch.setattr(sweep, "simulate", stumble)
    with pytest.raises(ZeroDivisionError) as caught:
        list(sweep.sweep(seeds(5), 1))
    assert caught.value.__notes__ == ["while simulating magm (estimator none, seed 5)"]


# -- parallel processes


def under(*policies: str) -> list[Experiment]:
    return [replace(ONE, settings=Settings(policy=name)) for name in policies]


def test_processes_answer_as_one_alone_does_and_in_the_order_asked(tmp_path: Path) -> None:
    asked = under("rr", "exclusive", "magm", "lug")
    parallel = list(sweep.sweep(asked, 2, Cache(tmp_path)))
    alone = list(sweep.sweep(asked, 1))
    assert [experiment for experiment, _ in parallel] == asked
    assert [replace(found, wall_s=0) for _, found in parallel] == [
        replace(found, wall_s=0) for _, found in alone
    ]
    assert {path.name for path in tmp_path.iterdir()} == set(cache_keys(asked))


def test_a_failure_in_a_process_says_which_and_ends_the_others() -> None:
    with pytest.raises(CarmaError) as caught:
        list(sweep.sweep(under("magm", "nonsense"), 2))
    assert caught.value.message.startswith("nonsense (estimator none, seed 0): there is no")
    assert "magm" in caught.value.hint
    assert active_children() == []


def test_a_defect_in_a_process_brings_its_traceback_along() -> None:
    broken = replace(ONE, physics=Physics(first_kernel_s=None))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError) as caught:
        list(sweep.sweep([broken, broken], 2))
    text = str(caught.value)
    assert text.startswith("Traceback") and "TypeError" in text
    assert text.endswith("while simulating magm (estimator none, seed 0)\n")
    assert active_children() == []


def test_a_process_that_is_killed_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin(tmp_path, monkeypatch, "import os\ndef mine(settings): os.kill(os.getpid(), 9)\n")
    with pytest.raises(CarmaError, match=r"mine .* was killed") as caught:
        list(sweep.sweep(under("mine", "mine"), 2))
    assert "memory" in caught.value.hint
    assert active_children() == []
