"""The campaign of a visit to a GPU machine, rehearsed without one: memory, loads and pairs."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from benchmarks import ROOT
from carma_simulator import catalogue
from carma_simulator.interference import Conserving
from carmad import DISTRIBUTION
from carmad.core.gpus.gpu import GpuSample
from carmad.core.jobs.attempt import GpuId, Mode
from carmad.errors import CarmaError
from lab import RESULTS
from lab.hardware import (
    campaign,
    carry,
    facts,
    loads,
    memory,
    pairs,
    pairs_page,
    plan,
    pool,
    stages,
    suspend,
    telemetry,
    trace,
    training,
)
from lab.hardware.pool import Pool, common
from lab.hardware.stages import Lacking
from lab.hardware.telemetry import Watch
from lab.hardware.training import Window
from lab.hardware.visit import VISITS, Portion, Stage, Visit
from lab.hardware.workloads import WAITING, WORKLOADS
from tests.waiting import PATIENCE_S

pytest_plugins = ("tests.fake_nvml",)


ONE = (Portion("all", 1.0),)


def visit(folder: Path, stage: str = "loads") -> Visit:
    return Visit(folder, stage, rehearse=True)


# -- rehearsals ------------------------------------------------------------------------------------


def rehearsed(stage: str, results: Path) -> Visit:
    """A rehearsal as the command makes it. Its page can be made again, nothing is measured twice,
    and no result is kept elsewhere."""
    before = sorted(RESULTS.rglob("*"))
    campaign.run((stage,), 9.5, rehearse=True, results=results)
    folder = results / "rehearsal"
    kept = (folder / f"{stage}.jsonl").read_text()
    (folder / f"{stage}.md").unlink()
    told = campaign.pages([stage], results)
    assert f"# rehearsal: {stages.load(stage).about}" in told.blocks
    page = (folder / f"{stage}.md").read_text()
    assert page.count("on rehearsal, driver none, torch") == 1, "where it was measured"
    assert "## Not measured" not in page

    def begun(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", begun)
        stages.load(stage).measure(visit(folder, stage))
    assert (folder / f"{stage}.jsonl").read_text() == kept
    assert sorted(RESULTS.rglob("*")) == before, "a rehearsal is not a result"
    return visit(folder, stage)


def page_of(one: Visit) -> str:
    return (one.folder / f"{one.stage}.md").read_text()


@pytest.mark.long
def test_a_rehearsal_of_loads_keeps_the_load_of_each_run(tmp_path: Path) -> None:
    one = rehearsed("loads", tmp_path)
    kept = one.entries()
    assert set(kept) == {loads.IDLE, *loads.REHEARSED}
    for name in loads.REHEARSED:
        assert kept[name]["step_s"] > 0 and kept[name]["steps"] > 1
        assert 0 < kept[name]["sm_active"] <= 1
        assert kept[name]["memory_mib"] > 50, "of a process with torch"
    assert kept[loads.IDLE]["sm_active"] < 0.5
    assert "## As rows of the simulator's catalogue" in page_of(one)


@pytest.mark.long
def test_a_rehearsal_of_memory_keeps_runs_and_constants(tmp_path: Path) -> None:
    one = rehearsed("memory", tmp_path)
    kept = one.entries()
    assert set(kept) == {"constants", *loads.REHEARSED}
    for name in loads.REHEARSED:
        assert kept[name]["by"] == "process" and kept[name]["nvml_mib"] > 50
    probes = {probe["what"] for probe in kept["constants"]["probes"]}
    assert {"context", "cublas", "RMSNorm, bfloat16"} <= probes
    assert {"convolution, cudnn.benchmark on", "convolution, cudnn.benchmark off"} <= probes
    assert {"search, 3×3, depthwise", "search, 3×3, depthwise, again"} <= probes
    assert "## Runs" in page_of(one) and "## What the stack takes beside tensors" in page_of(one)


@pytest.mark.long
def test_a_rehearsal_of_pairs_keeps_every_group_in_every_setting(tmp_path: Path) -> None:
    one = rehearsed("pairs", tmp_path)
    kept = one.entries()
    wanted = [case for each in pairs.SETTINGS for case in pairs.cases(each, rehearse=True)]
    assert set(kept) == {case.key for case in wanted}
    assert {case.setting.name for case in wanted} >= {"streams", "mps", "mps 50 %"}
    for case in wanted:
        assert len(kept[case.key]["step_s"]) == len(case.names)
        assert min(kept[case.key]["steps"]) > 0
    assert {len(case.names) for case in wanted} == {1, 2}
    assert "| streams, 2 " in page_of(one) and "## Groups" in page_of(one)


def test_an_estimator_has_looked_at_the_training_script(tmp_path: Path) -> None:
    campaign.estimates("", rehearse=True, results=tmp_path)
    kept = visit(tmp_path / "rehearsal", "estimates").entries()
    assert set(kept) == {loads.REHEARSED[0]}
    for entry in kept.values():
        assert entry["trace_mib"] >= entry["low_mib"] > 0
        assert entry["horus_mib"] > 0


READY = """echo '{"event": "ready"}'; read seconds"""
TRAINED = """echo '{"event": "steps", "began": 1.0, "ended": [2.0]}'; read more"""


def test_a_run_that_fails_takes_no_other_with_it_and_is_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scripts = {
        "good": f"{READY}; {TRAINED}",
        "late": f"{READY}; echo torch.OutOfMemoryError: CUDA out of memory >&2",
        "mute": "exit 1",
    }
    monkeypatch.setattr(pool, "command", lambda name, rehearse: ["sh", "-c", scripts[name], name])
    with Pool(scripts, {}, rehearse=True) as held:
        assert held.lost == {"mute": "it ended without a word"}
        assert held.train(["good", "late"], 0.1) == {}
        assert held.train(["good", "mute"], 0.1) == {}
    assert held.lost["late"] == "torch.OutOfMemoryError: CUDA out of memory"
    assert "good" not in held.lost


# -- entries ---------------------------------------------------------------------------------------


def test_after_a_line_that_was_cut_off_the_next_begins_on_its_own(tmp_path: Path) -> None:
    one = visit(tmp_path)
    one.keep("a", {"value": 1})
    with (tmp_path / "loads.jsonl").open("a") as file:
        file.write('{"key": "b", "val')
    one.keep("c", {"value": 3})
    assert one.entries() == {"a": {"value": 1}, "c": {"value": 3}}


def test_what_failed_is_tried_again_after_what_was_not_tried(tmp_path: Path) -> None:
    one = visit(tmp_path)
    one.keep("a", {"failed": "the GPU is in use"})
    one.keep("b", {"value": 2})
    assert list(one.todo("abc", str)) == ["c", "a"]
    one.keep("a", {"value": 1})
    assert list(one.todo("abc", str)) == ["c"]


def test_another_folder_goes_on_from_what_earlier_visits_kept(tmp_path: Path) -> None:
    visit(tmp_path / "earlier").keep("a", {"value": 1})
    now = replace(visit(tmp_path / "now"), earlier=tmp_path / "earlier")
    assert list(now.todo("ab", str)) == ["b"]
    now.keep("b", {"value": 2})
    assert now.entries() == {"a": {"value": 1}, "b": {"value": 2}}
    assert visit(tmp_path / "now").entries() == now.entries(), "the file is whole by itself"
    assert set(visit(tmp_path / "earlier").entries()) == {"a"}


def test_nothing_is_begun_that_would_end_too_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    one = replace(visit(tmp_path), until=110.0)
    assert list(one.todo("ab", str, takes_s=9.0)) == ["a", "b"]
    assert list(one.todo("ab", str, takes_s=11.0)) == []


def test_of_several_stages_one_that_fails_does_not_keep_the_next_from_being_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(visit: Visit) -> None:
        visit.keep("first", {})
        raise RuntimeError("no such kernel")

    known = {
        "cost": Stage("cost", "What it costs", ONE, (), fails, lambda visit: []),
        "loads": Stage(
            "loads", "Loads", ONE, (), lambda visit: visit.keep("a", {}), lambda visit: ["Seen."]
        ),
    }
    monkeypatch.setattr(stages, "load", known.__getitem__)
    with pytest.raises(ExceptionGroup):
        campaign.run(("cost", "loads"), 1.0, rehearse=True, results=tmp_path)
    folder = tmp_path / "rehearsal"
    assert set(visit(folder).entries("cost")) == {"first"}
    assert (folder / "loads.md").read_text().endswith("Seen.\n")
    told = [each["stage"] for each in visit(folder).entries(VISITS).values()]
    assert told == ["cost", "loads"]


def test_a_stage_is_not_begun_when_the_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    stage = Stage("loads", "", ONE, (), lambda visit: begun.append(visit.stage), lambda visit: [])
    monkeypatch.setattr(stages, "load", lambda name: stage)
    campaign.run(("loads",), 0.0, rehearse=True, results=tmp_path)
    assert begun == []


# -- what is trained -------------------------------------------------------------------------------


def test_there_are_enough_runs_of_every_kind() -> None:
    assert len(WORKLOADS) >= 60
    kinds = Counter(each.kind for each in WORKLOADS.values())
    assert min(kinds.values()) >= 5
    ways = list(WORKLOADS.values())
    for way in ("amp", "checkpoint", "compile", "channels_last"):
        assert any(getattr(each, way) for each in ways), way
    assert {each.optimizer for each in ways} == {"sgd", "adam", "adamw"}
    first = list(WORKLOADS.values())[:5]
    assert {each.kind for each in first} == set(kinds), "a short visit sees all kinds"


def test_what_is_called_mps_is_measured_under_it() -> None:
    assert [each.name for each in pairs.SETTINGS if each.mps != ("mps" in each.name)] == []


def test_enough_groups_and_none_of_them_twice() -> None:
    names = (*loads.PAIRED, *loads.MORE)
    assert len(set(names)) == len(names) >= 20 and set(names) <= set(WORKLOADS)
    found = pairs.groups(loads.PAIRED)
    by_size = Counter(map(len, found))
    assert by_size[2] >= 60 and by_size[3] >= 10 and by_size[4] >= 4 and by_size[8] >= 2
    assert len({frozenset(each) for each in found}) == len(found)
    assert all(len(set(each)) == len(each) for each in found)
    partners = Counter(name for each in found if len(each) == 2 for name in each)
    assert len(set(partners.values())) == 1, "each in as many pairs"
    assert len({WORKLOADS[name].model for name in loads.PAIRED}) >= 12


@pytest.mark.parametrize("count", [1, 2, 5, 8, 11])
def test_groups_of_few_runs_have_none_twice(count: int) -> None:
    found = pairs.groups(loads.PAIRED[:count])
    assert found[:count] == [(name,) for name in loads.PAIRED[:count]]
    assert len({frozenset(each) for each in found}) == len(found)
    assert all(len(set(each)) == len(each) for each in found)
    assert max(map(len, found)) == (8 if count >= 8 else min(count, 3 if count < 5 else 4))


def test_on_a_small_gpu_runs_are_loaded_in_waves_that_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waves: list[Sequence[str]] = []
    monkeypatch.setattr(loads, "_wave", lambda names, *rest: waves.append(names))
    monkeypatch.setattr(loads, "Watch", lambda visit: nullcontext(FakeWatch(81559)))
    loads.measure(Visit(tmp_path, "loads", rehearse=False))
    assert sorted(chain(*waves)) == sorted((*loads.PAIRED, *loads.MORE))
    assert [len(wave) for wave in waves] == [8, 8, 8], "11 would fit"
    waves.clear()
    monkeypatch.setattr(loads, "Watch", lambda visit: nullcontext(FakeWatch(183000)))
    loads.measure(Visit(tmp_path, "loads", rehearse=False))
    assert [len(wave) for wave in waves] == [24]


class FakeWatch:
    def __init__(self, memory_mib: int) -> None:
        self.gpu = SimpleNamespace(memory_mib=memory_mib)


class FakePool:
    def __init__(self, windows: dict[str, Window]) -> None:
        self._windows = windows

    def train(self, names: Sequence[str], seconds: float) -> dict[str, Window]:
        return {name: self._windows[name] for name in names}


def test_a_step_shorter_than_a_time_slice_counts_with_its_waits() -> None:
    """Alone a step takes 1 ms; of two that share, four run in a slice, then it waits 4 ms."""
    ends = [0.001 * (8 * burst + n) for burst in range(50) for n in (1, 2, 3, 4)]
    other = [0.008 * n for n in range(51)]
    held = FakePool({"short": Window(0.0, tuple(ends)), "long": Window(0.0, tuple(other))})
    watch = SimpleNamespace(means=lambda began, ended: {})
    case = pairs.Case(pairs.SETTINGS[0], ("short", "long"))
    entry = pairs._together(case, 0.4, cast(Pool, held), cast(Watch, watch))
    assert entry["step_s"] == pytest.approx([0.002, 0.008], rel=0.03)


def test_too_few_pairs_to_judge_a_model_are_said(tmp_path: Path) -> None:
    """A fold may leave nothing to fit to: as on a GPU where most runs did not fit."""
    one = _measured(tmp_path)
    names = ("resnet50-b64", "vgg16-b32", "gpt2-b4-t512")
    few = {key: entry for key, entry in one.entries().items() if set(key.split(" + ")) <= {*names}}
    there = visit(tmp_path / "few", "pairs")
    for name, entry in visit(tmp_path).entries().items():
        visit(tmp_path / "few").keep(name, entry)
    for key, entry in few.items():
        if key != "vgg16-b32 + gpt2-b4-t512":
            there.keep(key, entry)
    page = "\n".join(pairs_page.blocks(there))
    assert "No interference model is judged" in page and "2 pairs" in page


def test_what_a_run_printed_is_read_even_if_it_was_cut_off() -> None:
    lines = [
        "some library's warning",
        json.dumps({"event": "ready", "name": "a", "pid": 1, "seconds": 2.0}),
        json.dumps({"event": "steps", "began": 10.0, "ended": [11.0, 11.5, 12.0]}),
        json.dumps({"event": "steps", "began": 13.0, "ended": [14.0, 14.7]}),
        json.dumps({"event": "done", "allocated_mib": 5.0, "reserved_mib": 6.0}),
    ]
    whole = training.parse("\n".join(lines))
    assert (whole.name, whole.ready_s, whole.done) == ("a", 2.0, True)
    assert (whole.allocated_mib, whole.reserved_mib) == (5.0, 6.0)
    assert whole.steps == pytest.approx([0.5, 0.5, 0.7]), "without the first of each window"
    assert whole.step_s == pytest.approx(0.5)
    cut = training.parse("\n".join(lines)[:-20])
    assert not cut.done and cut.windows == whole.windows
    with pytest.raises(ValueError, match="never became ready"):
        training.parse("Traceback: no GPU")


def test_steps_count_only_while_all_train() -> None:
    long = Window(0.0, (1.0, 2.0, 3.0, 4.0))
    short = Window(0.5, (1.5, 2.5, 3.5))
    assert common([long, short]) == [[1.0, 1.0], [1.0, 1.0]]
    assert common([long, Window(10.0, (11.0,))]) == [[], []]


# -- the driver ------------------------------------------------------------------------------------


def test_a_process_tree_has_the_memory_of_all_that_it_started(nvml: Any, tmp_path: Path) -> None:
    """Through NVML and GPM, with a fake driver."""
    command = ["sh", "-c", "sleep 60 & echo $!; wait"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout
        below = int(child.stdout.readline())
        basics = """
            gpu GPU-aaaa
            name NVIDIA H200
            pci 0 41 0
            memory 143771 500 4000
            util 37 12
            power 250500
            gpm 60 30 20
        """
        nvml.show(
            basics,
            *(f"compute {pid} {mib}" for pid, mib in ((child.pid, 3000), (below, 500), (1, 70))),
        )
        try:
            with Watch(Visit(tmp_path, "memory", rehearse=False)) as watch:
                watch.seen(6, within_s=PATIENCE_S)
                assert watch.peak_mib(child.pid) == 3500
                assert watch.peak_mib(1) == 70 and watch.peak_mib(os.getpid()) is None
                means = watch.means(0.0, float("inf"))
        finally:
            os.kill(below, 9)
    assert (watch.gpu.id, watch.gpu.name) == ("GPU-aaaa", "NVIDIA H200")
    assert means["power_w"] == 250.5
    assert (means["sm_active"], means["dram_active"]) == (0.6, 0.2)


WORLD = """
    gpu GPU-aaaa
    name NVIDIA H200
    pci 0 41 0
    memory 143771 500 {used}
    util 37 12
    power 250500
"""


@pytest.mark.parametrize(
    ("used", "processes", "said"),
    [(300, ("compute 1 70",), "processes 1"), (2000, (), "2000 MiB")],
)
def test_a_gpu_in_use_is_not_measured(
    nvml: Any, tmp_path: Path, used: int, processes: tuple[str, ...], said: str
) -> None:
    nvml.show(WORLD.format(used=used), *processes)
    with (
        pytest.raises(SystemExit, match=f"in use: {said}"),
        campaign._visit(rehearse=False, device="", results=tmp_path),
    ):
        pass


def test_an_idle_gpu_is_measured(nvml: Any, tmp_path: Path) -> None:
    nvml.show(WORLD.format(used=300))
    with campaign._visit(rehearse=False, device="", results=tmp_path) as (found, _):
        assert found.gpu == "GPU-aaaa"


def test_a_watch_that_has_ended_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise OSError("the GPU is lost")

    monkeypatch.setattr(telemetry.Host, "sample", lost)
    with Watch(visit(tmp_path)) as watch:
        with pytest.raises(RuntimeError, match="the GPU is lost"):
            watch.seen(within_s=PATIENCE_S)
        for ask in (lambda: watch.means(0.0, 1.0), lambda: watch.peak_mib(1), watch.used_now):
            with pytest.raises(RuntimeError, match="the GPU is lost"):
                ask()


def test_power_is_by_the_energy_counter_and_what_lags_has_to_settle(tmp_path: Path) -> None:
    watch = Watch(visit(tmp_path))
    gpu = GpuId("GPU-aaaa")
    watch._samples = [
        GpuSample(gpu, n / 10, energy_mj=30_000 * n, power_w=90.0, utilization=0.5, sm_active=0.4)
        for n in range(21)
    ]
    assert watch.means(0.0, 0.8) | {"sm_active": 0.4} == watch.means(0.0, 0.8)
    assert watch.means(0.0, 0.8)["power_w"] == pytest.approx(300.0)
    assert watch.means(0.0, 0.8)["utilization"] is None
    assert watch.means(0.0, 2.0)["utilization"] == 0.5
    watch._samples = [replace(each, energy_mj=None) for each in watch._samples]
    assert watch.means(0.0, 0.8)["power_w"] is None
    assert watch.means(0.0, 2.0)["power_w"] == 90.0


def test_workers_end_with_a_pool_that_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pool, "command", lambda name, rehearse: ["sleep", "60"])
    monkeypatch.setattr(pool.Worker, "hear", interrupted)
    held = Pool(["a", "b"], {}, rehearse=True)
    with pytest.raises(KeyboardInterrupt), held:
        pass
    assert len(held.workers) == 2
    assert not any(psutil.pid_exists(worker.pid) for worker in held.workers.values())


@pytest.mark.parametrize("answer", [False, CarmaError("silent", "")])
def test_an_mps_daemon_that_stays_is_killed_and_the_stages_error_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | CarmaError
) -> None:
    def stop(*_: object) -> bool:
        if isinstance(answer, CarmaError):
            raise answer
        return answer

    monkeypatch.setattr(pairs.Mps, "stop", stop)
    gpu = GpuId("GPU-rehearsal")
    with pytest.raises(ZeroDivisionError), pairs._mps(visit(tmp_path), gpu) as mps:
        env = os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(mps.daemon(gpu).pipe)}
        child = subprocess.Popen(["sleep", "60"], env=env)
        while not psutil.Process(child.pid).environ().get("CUDA_MPS_PIPE_DIRECTORY"):
            pass  # not yet executed
        raise ZeroDivisionError
    assert not psutil.pid_exists(child.pid)  # killed and reaped


def test_a_run_that_met_a_full_gpu_is_measured_again_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(name: str, visit: Visit, watch: Watch, alone: bool) -> dict[str, Any]:
        return {"gpu_used": 0.95 if name == "resnet50-b64" else 0.5, "alone": alone}

    monkeypatch.setattr(memory, "_run", run)
    one = visit(tmp_path, "memory")
    memory._several(iter(["resnet50-b64", "resnet18-b32"]), 2, one, Watch(one))
    assert {name: entry["alone"] for name, entry in one.entries().items()} == {
        "resnet50-b64": True,
        "resnet18-b32": False,
    }


# -- pages -----------------------------------------------------------------------------------------


def _group(setting: str, steps: dict[str, float]) -> dict[str, Any]:
    return {"setting": setting, "names": list(steps), "step_s": list(steps.values())}


def test_speeds_are_relative_to_alone_with_the_whole_gpu() -> None:
    entries = [
        _group("streams", {"a": 1.0}),
        _group("streams", {"b": 2.0}),
        _group("mps", {"a": 1.1}),
        _group("mps", {"b": 2.2}),
        _group("streams", {"a": 2.0, "b": 4.0}),
        _group("mps", {"a": 1.1, "b": 4.4}),
        _group("mps 50 %", {"a": 2.2, "b": 2.2}),
        _group("streams", {"a": 1.0, "c": 1.0}),  # c alone is not known
        {"setting": "mps", "names": ["a", "b"], "failed": "out of memory"},
    ]
    found = {group.setting: group.speeds for group in pairs_page.groups(entries)}
    assert found == {"streams": (0.5, 0.5), "mps": (1.0, 0.5), "mps 50 %": (0.5, 1.0)}


def test_alone_is_the_median_of_its_measurements_and_their_spread_the_noise_floor(
    tmp_path: Path,
) -> None:
    entries = [_group("streams", {name: step}) for name in "ab" for step in (1.0, 1.2)]
    entries.append(_group("streams", {"a": 2.2, "b": 1.1}))
    [group] = pairs_page.groups(entries)
    assert group.speeds == pytest.approx((0.5, 1.0))
    for n, entry in enumerate(entries):
        visit(tmp_path, "pairs").keep(str(n), entry)
    page = "\n".join(pairs_page.blocks(visit(tmp_path, "pairs")))
    assert "streams: median 20.0%, most 20.0% of 2 runs" in page


def test_without_smact_loads_follow_from_nvmls_utilisation(tmp_path: Path) -> None:
    one = visit(tmp_path)
    smact = {"sm_active": None, "sm_occupancy": None, "dram_active": None}
    entry = smact | {"utilization": 0.9, "memory_utilization": 0.4, "memory_mib": None}
    one.keep("resnet50-b64", {**entry, "step_s": 0.04})
    one.keep("vgg16-b32", {**entry, "memory_utilization": None, "step_s": 0.04})
    visit(tmp_path, "memory").keep("resnet50-b64", {"nvml_mib": 9000})
    assert set(loads.loads(one)) == {"resnet50-b64"}
    load = loads.loads(one)["resnet50-b64"]
    found = (load.sm_active, load.sm_occupancy, load.dram_active)
    assert found == pytest.approx(catalogue.activity(0.9, 0.4), abs=1e-4)
    assert load.memory_mib == 9000, "of stage memory: the driver hides the process"
    page = "\n".join(loads.blocks(one))
    assert "tells no SMACT, SMOCC and DRAMA of 2 runs. Those of 1 are derived" in page
    assert "does not list 2 runs by their pids" in page
    assert "resnet50-b64, activity derived" in page


def _measured(folder: Path) -> Visit:
    """Of six models: what `conserving` predicts of pairs and of a triple, taken for measured."""
    names = ("resnet50-b64", "vgg16-b32", "gpt2-b4-t512", "resnet18-b32", "densenet121-b32")
    names = (*names, "mlp1024x4-b128")
    for n, name in enumerate(names):
        activity = {"sm_active": 0.9 - 0.1 * n, "sm_occupancy": 0.3, "dram_active": 0.4}
        visit(folder).keep(name, {**activity, "memory_mib": 3000 + n, "step_s": 0.1})
    known, model = loads.loads(visit(folder)), Conserving({Mode.STREAMS: 2.0})
    several = [*combinations(names, 2), names[:3]]
    for group in (*((name,) for name in names), *several):
        speeds = model.speeds([known[name] for name in group], Mode.STREAMS)
        steps = {name: 0.1 / speed for name, speed in zip(group, speeds, strict=True)}
        visit(folder, "pairs").keep(" + ".join(group), _group("streams", steps))
    return visit(folder, "pairs")


def test_the_interference_models_are_judged_on_unseen_models_and_on_triples(
    tmp_path: Path,
) -> None:
    page = "\n".join(pairs_page.blocks(_measured(tmp_path)))
    assert "15 pairs and 1 larger groups" in page
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    errors = {row[4]: float(row[5]) for row in rows if row[1:4] == ["streams", "streams", "30"]}
    assert errors["conserving"] == 0.0 < errors["additive"] < errors["none"]
    assert ["", "streams, 3", "3", "conserving, from pairs", "0.000", ""] in rows
    assert "from all pairs: streams 2.000" in page


def test_estimators_are_judged_by_models_that_did_not_give_the_constant(tmp_path: Path) -> None:
    runs = {"resnet50-b64": 5000, "vgg16-b32": 7000, "gpt2-b4-t512": 9000, "resnet18-b32": 2000}
    for name, traced in runs.items():
        measured = {"by": "process", "allocated_mib": 1.0, "reserved_mib": traced, "step_s": 0.1}
        visit(tmp_path, "memory").keep(name, {"nvml_mib": traced + 600, **measured})
        said = {"trace_mib": traced, "high_mib": traced + 512, "faketensor_mib": traced - 1000}
        visit(tmp_path, "estimates").keep(name, {**said, "horus_mib": traced + 1624})
        visit(tmp_path).keep(name, {"memory_mib": traced + 600})
    visit(tmp_path, "memory").keep("resnet101-b32", {"failed": "CUDA out of memory"})
    visit(tmp_path, "estimates").keep("resnet101-b32", {"trace_mib": 1, "high_mib": 2})
    page = "\n".join(stages.load("memory").blocks(visit(tmp_path, "memory")))
    assert "## Not measured\n- resnet101-b32: CUDA out of memory" in page
    assert "context and libraries, 600 MiB, is the median of 2 runs of other models" in page
    rows = [[cell.strip() for cell in line.split("|")] for line in page.splitlines()]
    medians = {row[1]: row[3] for row in rows if len(row) == 13}
    assert medians["trace, expected"] == "0.00" and medians["trace, high"] == "0.50"
    assert medians["FakeTensor"] == "1.56" and medians["Horus"] == "1.00"
    assert medians["history, after one run"] == "0.00"
    assert "GPUMemNet, where it answers" not in medians, "it answered nothing"


def test_a_measured_load_is_a_row_of_the_catalogue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"sm_active": 0.61, "sm_occupancy": 0.2, "dram_active": 0.33, "memory_mib": 9000}
    visit(tmp_path).keep("resnet50-b64", {**entry, "step_s": 0.04})
    facts = {"stage": "loads", "gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-11-22"}
    visit(tmp_path, VISITS).keep("1", facts)
    told = loads.catalogue_rows(visit(tmp_path))
    head = Path(catalogue.__file__).with_name("coefficients").joinpath("catalogue.csv")
    [row] = csv.DictReader([head.read_text().splitlines()[0], *told.splitlines()])
    profile = catalogue._profile(row)
    assert profile.source == "measured: NVIDIA H200, driver 580.1, 2026-11-22; resnet50-b64"
    load = profile.load
    assert (load.sm_active, load.sm_occupancy, load.dram_active) == (0.61, 0.2, 0.33)
    assert (load.model, load.batch_size, load.memory_mib) == ("resnet50", 64, 9000)


# -- the plan --------------------------------------------------------------------------------------


def _stage(
    name: str,
    *minutes: float,
    needs: tuple[str, ...] = (),
    measure: Callable[[Visit], None] = print,
) -> Stage:
    portions = [Portion(f"{each:g}", each) for each in minutes]
    return Stage(name, "", tuple(portions), (), measure, lambda visit: [], needs)


def test_a_visit_has_what_is_asked_for_most_and_names_what_is_left() -> None:
    here = [
        _stage("facts", 4),
        _stage("cost", 3.7, 2.3),
        _stage("memory", 4),
        _stage("pairs", 1, 6),
        _stage("suspend", 1, 0.5),
        _stage("trace", 2, needs=("memory",)),
    ]

    def planned(minutes: float) -> tuple[list[dict[str, float]], list[str]]:
        found, left = plan.commands(here, minutes)
        assert all(command.minutes <= plan.COMMAND_MIN for command in found)
        assert sum(command.minutes for command in found) <= minutes - plan.AROUND_MIN
        return [command.shares for command in found], [part.name for _, part in left]

    first = {"suspend": 1, "pairs": 1, "trace": 2, "facts": 4}
    assert planned(12) == ([first, {"suspend": 0.5}], ["3.7", "2.3", "4", "6"])
    assert [*planned(12)[0][0]] == ["suspend", "pairs", "trace", "facts"], "in this order"
    whole, left = planned(60)
    assert left == [] and whole[:2] == [first, {"cost": 6.0, "suspend": 0.5}]


def test_twelve_minutes_are_for_what_nobody_has_measured() -> None:
    (first, *others), _ = plan.commands([stages.load(name) for name in stages.ORDER], 12.0)
    parts = [(stage.name, part.name) for stage, part in first.parts]
    assert parts == [
        ("suspend", "1 GiB, 10 GiB"),
        ("pairs", "mps, 10 groups"),
        ("loads", "24 training runs"),
        ("trace", "exclusive, no estimate"),
        ("trace", "magm, declared"),
        ("facts", f"{len(facts.NEW)} facts that are new"),
    ]
    assert first.minutes + sum(each.minutes for each in others) <= 10.0
    measured = (RESULTS / "hardware/nvidia-h100-80gb-hbm3/pairs.jsonl").read_text()
    known = {frozenset(entry["names"]) for entry in map(json.loads, measured.splitlines())}
    late = {each.name for each in WAITING}
    assert sum(frozenset(group) in known for group in pairs.FIRST) == 6
    assert sum(not late.isdisjoint(group) for group in pairs.FIRST) == 4


@pytest.mark.long
def test_the_plan_of_twelve_minutes_is_rehearsed_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parts, and of the facts two: their rehearsal has a test of its own."""
    (first, *_), _ = plan.commands([stages.load(name) for name in stages.ORDER], 12.0)
    names = tuple(first.shares)
    monkeypatch.setattr(suspend, "CASES", suspend.CASES[:2])
    monkeypatch.setattr(pairs, "SETTINGS", pairs.SETTINGS[:1])
    monkeypatch.setattr(trace, "REHEARSED", replace(trace.REHEARSED, runs=trace.RUNS[:2]))
    monkeypatch.setattr(facts, "CHECKED", facts.CHECKED[:2])
    # A slow machine does not get through the two cases of `suspend` in a visit's share.
    minutes, shares = first.minutes + 4, first.shares | {"suspend": first.shares["suspend"] + 4}
    campaign.run(names, minutes, rehearse=True, results=tmp_path, shares=shares)
    kept = {name: visit(tmp_path / "rehearsal", name).entries() for name in (VISITS, *names)}
    assert [entry["stage"] for entry in kept[VISITS].values()] == [*names]
    assert all(kept[name] for name in names), "each has kept something"
    assert set(kept["suspend"]) == {"1 GiB", "10 GiB"}
    assert set(kept["trace"]) == {run.name for run in trace.RUNS[:2]}
    late = [key for key in kept["pairs"] if WAITING[1].name in key]
    assert all(not kept["pairs"][key].get("failed") for key in late)
    taken = sum(entry["minutes"] for entry in kept[VISITS].values())
    assert taken <= minutes, "what would take longer is left"


def test_stages_share_the_time_and_leave_the_rest_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    ends: list[float] = []

    def one_minute(visit: Visit) -> None:
        nonlocal now
        ends.append(visit.until - now)
        now += 60

    known = {name: _stage(name, each, measure=one_minute) for name, each in (("a", 6), ("b", 3))}
    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(stages, "load", known.__getitem__)
    minutes = 6 + campaign.ENDING_S / 60
    campaign.run(("a", "b"), minutes, rehearse=True, results=tmp_path)
    assert ends == pytest.approx([4 * 60, 5 * 60])
    ends.clear()
    campaign.run(("a", "b"), minutes, rehearse=True, results=tmp_path, shares={"a": 1.5, "b": 4.5})
    assert ends == pytest.approx([1.5 * 60, 5 * 60]), "as the plan shares them out"


def test_what_a_stage_measures_in_a_row_is_short_enough_for_a_command() -> None:
    for name in stages.ORDER:
        assert max(each.minutes for each in stages.load(name).parts) <= campaign.STAGE_MIN


@pytest.mark.parametrize("missing", ["timm", "fastapi"])
def test_a_missing_package_is_told_with_what_to_carry(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = stages.find_spec
    monkeypatch.setattr(stages, "find_spec", lambda name: None if name == missing else there(name))
    _versions(monkeypatch)
    with pytest.raises(Lacking, match=f"too old: {missing}") as lacking:
        stages.load("memory")
    told = str(lacking.value)
    assert "python -m lab.hardware carry wheels" in told and str(stages.WHEELS) in told


def test_a_checkout_without_metadata_is_told_to_bring_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _versions(monkeypatch, **{DISTRIBUTION: None})
    with pytest.raises(Lacking, match="carma's metadata"):
        stages.load("loads")


def test_what_to_carry_is_what_carma_needs_and_the_machine_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(subprocess, "run", lambda argv, check: asked.append(argv))
    carry.carry(tmp_path)
    names = {word.partition("==")[0] for word in asked[0] if "==" in word}
    wanted = {"fastapi", "uvicorn", "httptools", "sqlalchemy", "apscheduler", "pydantic"}
    assert names >= wanted | {"tomlkit", "prometheus-client", "jinja2", "starlette"}
    assert names.isdisjoint(carry.THERE) and "numpy" not in names
    assert "--no-deps" in asked[0], "or pip would bring another torch"
    assert next(each.name for each in tmp_path.iterdir()).startswith("carma_gpu-")
    (tmp_path / "large").write_bytes(b"0" * ((carry.MOST_MIB << 20) + 1))
    with pytest.raises(SystemExit, match="64 can be carried"):
        carry.carry(tmp_path)


@pytest.mark.parametrize(("package", "old"), [("sqlalchemy", "2.0.9"), ("torch", "1.13.1+cu117")])
def test_a_package_that_is_too_old_is_missing(
    package: str, old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _versions(monkeypatch, **{package.lower(): old})
    with pytest.raises(Lacking, match=f"too old: {package}"):
        stages.load("loads")
    _versions(monkeypatch, **{package.lower(): "900.1"})
    stages.load("loads")


def _versions(monkeypatch: pytest.MonkeyPatch, **others: str | None) -> None:
    monkeypatch.setattr(stages, "_version", lambda name: others.get(name.lower(), "900"))


@pytest.mark.parametrize("error", [ImportError, AttributeError])
def test_a_stage_that_cannot_be_loaded_leaves_the_others(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = stages.import_module

    def broken(name: str) -> object:
        if name.endswith("memory"):
            raise error("no such name in torch")
        return whole(name)

    monkeypatch.setattr(stages, "import_module", broken)
    here, lacking = stages.loaded(("memory", "loads"))
    assert [stage.name for stage in here] == ["loads"]
    assert lacking == ["stage memory cannot be loaded by this Python: no such name in torch"]


def test_the_plan_names_commit_results_and_what_to_bring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CARMA_COMMIT", "0123abc")
    monkeypatch.setattr(stages, "load", lambda name: _stage(name, 5.0))
    told = "\n".join(plan.plan(rehearse=False, minutes=18.0).blocks)
    lines = told.splitlines()
    commands = [n for n, line in enumerate(lines) if line.startswith("CARMA_COMMIT=0123abc ")]
    assert len(commands) == 3
    for n in commands:
        assert lines[n].endswith(" --minutes 5.3 --results $OUT")
        assert lines[n + 1].endswith("cp -r $OUT/. lab/results/hardware/")
    assert "Left for the next visit: 25.0 minutes" in told
    assert "`python -m lab.hardware facts,cost,memory,trace,faults --results $OUT`" in told
    assert "python -m lab.hardware carry wheels" in told


def test_a_bare_python_is_told_what_to_bring(tmp_path: Path) -> None:
    """Before anything is imported that needs it."""
    bare = (
        "import runpy, sys; sys.modules['sqlalchemy'] = None; sys.argv[0] = 'hardware';"
        "runpy.run_module('lab.hardware', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", bare, "loads", "--rehearse", f"--results={tmp_path}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert told.returncode == 1
    needed = "stage loads needs packages that this Python lacks, or has too old: sqlalchemy"
    assert needed in told.stderr
    assert "Traceback" not in told.stderr


@pytest.mark.parametrize(
    ("old", "first"), [({}, False), ({"pydantic": "1.10.2"}, True)], ids=["as last", "as first"]
)
def test_carried_packages_come_last_unless_those_of_the_machine_are_too_old(
    old: dict[str, str], first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here and in children."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setattr(stages, "WHEELS", wheels)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PYTHONPATH", "/mine")
    _versions(monkeypatch, **old)
    stages.bring()
    assert sys.path[0 if first else -1] == str(wheels)
    both = [str(wheels), "/mine"] if first else ["/mine", str(wheels)]
    assert os.environ["PYTHONPATH"] == os.pathsep.join(both)


def test_a_page_without_results_or_packages_is_an_error_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CarmaError, match="has no results of trace") as error:
        campaign.pages(["trace"], tmp_path)
    assert "python -m lab.hardware trace" in error.value.hint
    visit(tmp_path / "h200").keep("a", {"failed": "no memory"})
    assert "# h200: " in campaign.pages(["trace", "loads"], tmp_path).blocks[0]
    _versions(monkeypatch, torch="1.0")
    with pytest.raises(SystemExit, match="stage loads needs packages"):
        campaign.pages(["loads"], tmp_path)
