"""The campaign's stage `trace`, rehearsed on emulated cards, its job mix, and its simulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.daemon.carmad import Daemon
from carma_simulator.experiment import Load
from carma_simulator.interference import Conserving
from carmad.config import Settings
from carmad.core.jobs.attempt import Mode
from lab.data import DATA, read
from lab.hardware import interference, loads, machine, simulated, trace
from lab.hardware.mix import GPUS, HEAVY, LOAD, Measured, as_published, nearest, parts
from lab.hardware.policies import RUNS, Run
from lab.hardware.trace import STAGE
from lab.hardware.visit import Visit

pytest_plugins = ("tests.forked_carmad",)


@pytest.mark.long
def test_a_rehearsal_finishes_every_job_and_its_page_can_be_made(
    forked: None, tmp_path: Path
) -> None:
    visit = Visit(tmp_path, STAGE.name, rehearse=True)
    STAGE.measure(visit)
    kept = visit.entries()
    assert list(kept) == [run.name for run in trace.REHEARSED.runs]
    for name, entry in kept.items():
        jobs = entry["jobs"]
        assert len(jobs) == trace.REHEARSED.tasks
        # Whatever ran out of memory has recovered.
        assert {job["state"] for job in jobs} == {"succeeded"}, (name, jobs)
        assert entry["energy_j"] > 0
        assert entry["gpu"] == "Emulated A100-SXM4-80GB", "of which a ballast leaves half"
        assert entry["memory_mib"] == 40_960
    assert all(job["estimate_mib"] for job in kept["magm, declared"]["jobs"])
    modes = {
        each["mode"] for job in kept["exclusive, no estimate"]["jobs"] for each in job["attempts"]
    }
    assert len(modes) == 1
    page = "\n".join(STAGE.blocks(visit))
    assert "Every job finished." in page and "Not run yet: rr, no estimate" in page
    assert "Interference is that of emulated cards." in page
    assert page.count("makespan") > len(kept), "each is compared with the simulator"
    STAGE.measure(visit)
    assert visit.entries() == kept, "nothing is run twice"


def test_the_mix_is_every_fifth_task_of_one_gpu_of_the_published_trace() -> None:
    if not DATA.exists():
        pytest.skip("the public data are not here")
    tasks = {row["task"]: row for row in read("carma/heavy60_tasks.csv")}
    rows = [(float(row["seconds"]), tasks[row["task"]]) for row in read("carma/heavy60.csv")]
    of_one = [(at, row) for at, row in rows if row["gpus"] == "1"]
    assert [
        (each.at_s, each.name, each.sm_active, each.duration_s, each.memory_gb) for each in HEAVY
    ] == [
        (at, row["task"], *(float(row[what]) for what in ("smact", "duration_s", "memory_gb")))
        for at, row in of_one[::5]
    ]
    work_s = sum(float(row["duration_s"]) * int(row["gpus"]) for _, row in rows)
    assert pytest.approx(work_s / GPUS / rows[-1][0]) == LOAD


def test_the_shrunk_mix_offers_one_gpu_what_each_of_the_four_was_offered() -> None:
    played = parts(as_published(), mean_s=4.0, count=len(HEAVY))
    work_s = sum(part.task.duration_s for part in played)
    assert work_s == pytest.approx(4.0 * len(HEAVY), rel=0.02)
    assert work_s / played[-1].task.submit_s == pytest.approx(LOAD, rel=0.02)
    assert all(part.steps * 0.05 == pytest.approx(part.task.duration_s) for part in played)
    assert [part.task.name for part in played] == [each.name for each in HEAVY]


def test_a_task_is_played_by_the_workload_of_the_nearest_load() -> None:
    measured = {
        name: Measured(Load(memory_mib=mib, sm_active=sm), 0.1)
        for name, mib, sm in (("small", 2_000, 0.1), ("busy", 8_000, 0.9), ("large", 19_000, 0.9))
    }
    by_name = {each.name: each for each in HEAVY}
    assert nearest(by_name["mnist_train"], measured) == "small"
    assert nearest(by_name["vgg2"], measured) == "busy"
    assert nearest(by_name["BERT_base"], measured) == "large"


def a_job(name: str, submit_s: float, *attempts: tuple[float, float | None, float, str]) -> Any:
    names = ("launched_s", "kernel_s", "ended_s", "cause")
    tried = [dict(zip(names, each, strict=True)) | {"mode": "streams"} for each in attempts]
    load = {"memory_mib": 25_000, "sm_active": 0.4, "sm_occupancy": 0.2, "dram_active": 0.1}
    done = attempts[-1][3] == "success"
    return {
        "name": name,
        "submit_s": submit_s,
        "alone_s": 10.0,
        "load": load,
        "estimate_mib": None,
        "state": "succeeded" if done else "out_of_memory",
        "evidence": "" if done else "CUDA out of memory",
        "attempts": tried,
    }


def a_run(*jobs: Any) -> Any:
    machine = {"gpu": "NVIDIA H200", "memory_mib": 40_960, "mps": False, "window_s": 1.0}
    return {**machine, "interference": "", "energy_j": 5000, "jobs": list(jobs)}


ALONE = a_run(
    a_job("a", 0.0, (0.0, 5.0, 15.5, "success")), a_job("b", 1.0, (15.5, 20.5, 31.0, "success"))
)
RR = a_run(
    a_job("a", 0.0, (0.0, 5.0, 16.0, "success")),
    a_job("b", 1.0, (6.0, None, 12.0, "gpu_oom"), (16.0, 21.0, 31.5, "success")),
)


def test_what_a_job_takes_around_its_steps_is_from_the_exclusive_run() -> None:
    costs = simulated.overheads(ALONE, (ALONE, RR))
    assert (costs.first_kernel_s, costs.end_s, costs.oom_s) == pytest.approx((5.0, 0.5, 1.0))


def test_the_page_compares_with_the_simulator_and_names_who_did_not_recover(tmp_path: Path) -> None:
    visit = Visit(tmp_path, STAGE.name, rehearse=False)
    lost = a_job("c", 2.0, (7.0, 12.0, 13.0, "gpu_oom"))
    visit.keep("exclusive, no estimate", ALONE)
    visit.keep("rr, no estimate", {**RR, "jobs": [*RR["jobs"], lost]})
    visit.keep("magm, horus", {"failed": "carmad did not start"})
    page = "\n".join(STAGE.blocks(visit))
    assert "job 3 (c) ended out_of_memory: CUDA out of memory" in page
    assert "magm, horus: carmad did not start" in page
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    fidelity = {tuple(row[1:3]): row for row in rows if len(row) == 8}
    assert fidelity["exclusive, no estimate", "makespan"][-2] == "met"
    figures = next(row for row in rows if row[1:2] == ["rr, no estimate"])
    assert figures[8:11] == ["2", "1", "2 of 3"]  # OOM, recovered, finished


def test_the_simulator_takes_the_interference_that_pairs_measured_here(tmp_path: Path) -> None:
    visit = Visit(tmp_path, STAGE.name, rehearse=False)
    visit.keep("exclusive, no estimate", ALONE)
    together = a_run(
        a_job("a", 0.0, (0.0, 5.0, 20.5, "success")), a_job("b", 1.0, (1.0, 6.0, 21.5, "success"))
    )
    for job in together["jobs"]:
        job["load"]["memory_mib"] = 5_000  # both fit
    visit.keep("rr, no estimate", together)
    shipped, simulated_s = fidelity(visit)
    assert "`conserving` as CARMA ships it" in shipped
    pairs = Visit(tmp_path, "pairs", rehearse=False)
    for setting, step_s in (("streams", 0.4), ("mps", 9.9), ("mps 50 %", 9.9)):
        for names, steps in ((["a"], [0.1]), (["b"], [0.1]), (["b", "a"], [step_s, step_s])):
            key = f"{setting}: {' + '.join(names)}"
            pairs.keep(key, {"setting": setting, "names": names, "step_s": steps})
    measured, slower_s = fidelity(visit)
    assert "the 2 groups that stage `pairs` measured on this GPU" in measured
    assert "(streams as shipped, mps as shipped)" in measured, "no loads: nothing to fit"
    # A quarter of the speed for most of their 10 s, far less than learned on streams says.
    assert slower_s > 1.5 * simulated_s


def fidelity(visit: Visit) -> tuple[str, float]:
    """The page, and the makespan of rr in the simulator."""
    page = "\n".join(STAGE.blocks(visit))
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    row = next(row for row in rows if row[1:3] == ["rr, no estimate", "makespan"])
    return page, float(row[4].split()[0])


def test_groups_have_their_measured_speeds_in_any_order_and_others_a_fitted_model(
    tmp_path: Path,
) -> None:
    names = ("resnet50-b64", "vgg16-b32", "resnet50-b64-fp16-cl")  # two of them of one model
    for n, name in enumerate(names):
        activity = {"sm_active": 0.8 - 0.2 * n, "sm_occupancy": 0.3, "dram_active": 0.4}
        entry = {**activity, "memory_mib": 3000, "step_s": 0.1}
        Visit(tmp_path, "loads", rehearse=False).keep(name, entry)
    pairs = Visit(tmp_path, "pairs", rehearse=False)
    known = loads.loads(pairs)
    for name in names:
        pairs.keep(name, {"setting": "streams", "names": [name], "step_s": [0.1]})
    said = Conserving({Mode.STREAMS: 0.7})
    for one, other in (names[:2], names[1:]):
        speeds = said.speeds([known[one], known[other]], Mode.STREAMS)
        steps = [0.1 / speed for speed in speeds]
        pairs.keep(one + other, {"setting": "streams", "names": [one, other], "step_s": steps})
    pairs.keep("triple", {"setting": "streams", "names": names, "step_s": [0.2, 0.05, 0.4]})
    model = interference.chosen(pairs, "").model
    a, b, c = (replace(known[name], model=name) for name in names)
    assert model.speeds([c, a, b], Mode.STREAMS) == (0.25, 0.5, 1.0), "no faster than alone"
    assert model.speeds([b, a], Mode.STREAMS) == pytest.approx(said.speeds([b, a], Mode.STREAMS))
    unmeasured = model.speeds([a, c], Mode.STREAMS)
    assert unmeasured == pytest.approx(said.speeds([a, c], Mode.STREAMS)), "by the fit"
    assert model.speeds([a, c], Mode.MPS) == Conserving().speeds([a, c], Mode.MPS), "as shipped"


def test_the_page_can_be_made_although_no_job_ended_well(tmp_path: Path) -> None:
    visit = Visit(tmp_path, STAGE.name, rehearse=False)
    visit.keep("exclusive, no estimate", a_run(a_job("a", 0.0, (0.0, None, 9.0, "gpu_oom"))))
    assert "needs a job of the run exclusive" in "\n".join(STAGE.blocks(visit))


def test_what_the_ballast_takes_leaves_the_gpu_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver counts contexts as well as what was allocated."""
    held_mib = 102_400
    given: list[Settings] = []

    @contextmanager
    def ballast(*_: object) -> Iterator[machine.Ballast]:
        yield machine.Ballast(held_mib, "auto")

    @contextmanager
    def running(_: Visit, settings: Settings) -> Iterator[Any]:
        given.append(settings)
        raise RuntimeError("far enough")
        yield

    monkeypatch.setattr(trace, "ballast", ballast)
    monkeypatch.setattr(trace, "running", running)
    with pytest.raises(RuntimeError, match="far enough"):
        trace.play(Visit(Path(), STAGE.name, rehearse=True), RUNS[0], [], 1.0)
    assert given[0].monitor.external_mib == held_mib + trace.MPS_MIB


def test_no_run_outlasts_the_visit_and_none_keeps_the_others_from_being_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(_visit: Visit, run: Run, *_: object) -> Any:
        if run == RUNS[0]:
            raise KeyError("whatever it is")
        raise TimeoutError

    monkeypatch.setattr(trace, "play", play)
    visit = Visit(tmp_path, STAGE.name, rehearse=True)
    STAGE.measure(visit)
    assert len(visit.entries()) == len(trace.REHEARSED.runs)
    assert all("failed" in entry for entry in visit.entries().values())


def test_jobs_that_do_not_end_are_given_up_when_the_visit_ends() -> None:
    busy = SimpleNamespace(get=lambda _: {"jobs": ["one"]})
    with pytest.raises(TimeoutError):
        trace.await_end(cast(Daemon, busy), end=0.0)


def test_a_silent_ballast_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "VICTIM", ["/bin/sh", "-c", "exec sleep 100"])
    monkeypatch.setattr(machine, "LAID_WITHIN_S", 0.0)
    visit = Visit(Path(), STAGE.name, rehearse=False)
    with pytest.raises(RuntimeError, match="could not be laid"), machine.ballast(visit, 1024):
        pass


def test_without_loads_nothing_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    visit = Visit(tmp_path, STAGE.name, rehearse=False)
    STAGE.measure(visit)
    assert "stage `loads` has measured nothing" in capsys.readouterr().err
    assert visit.entries() == {} and STAGE.blocks(visit)
