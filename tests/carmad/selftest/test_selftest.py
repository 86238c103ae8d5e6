"""The self-test behind `carma doctor --gpu`: which GPU, what it leaves behind, what it reports,
the settings that it writes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from pydantic import TypeAdapter

from carmad import configwriting
from carmad.config import Settings
from carmad.configfile import load
from carmad.errors import CarmaError
from carmad.selftest import bench as benches
from carmad.selftest import report, run
from carmad.selftest.bench import Bench, Probe
from carmad.selftest.facts import FACTS
from carmad.selftest.report import Finding, Verdict
from cli.main import run as carma
from tests import fake_gpu
from tests.waiting import PATIENCE_S, until

if TYPE_CHECKING:
    from tests.fake_machine import Machine

pytest_plugins = ("tests.fake_machine",)


# --- which GPU, and what is left ---


@contextlib.contextmanager
def somebody(machine: Machine, index: int = 0) -> Iterator[int]:
    """Another process on the GPU."""
    env = dict(os.environ) | {"CUDA_VISIBLE_DEVICES": fake_gpu.uuid(index)}
    probe = Probe([sys.executable, "-m", "carmad.selftest.probe"], env)
    try:
        yield probe.ask("context")["pid"]
    finally:
        probe.end()


def test_a_busy_gpu_is_refused(machine: Machine) -> None:
    with somebody(machine) as pid, pytest.raises(CarmaError, match=f"GPU 0 .processes {pid}"):
        run.run(Settings(), facts=[])
    assert run.run(Settings(), facts=[]).gpu == "NVIDIA H100 80GB HBM3"


def test_beside_a_busy_gpu_an_idle_one_has_to_be_named(machine: Machine) -> None:
    machine.have(gpus=2)
    with somebody(machine):
        with pytest.raises(CarmaError) as error:
            run.run(Settings(), facts=[])
        assert "idle: 1" in error.value.hint
        with pytest.raises(CarmaError, match="in use: GPU 0"):
            run.run(Settings(), device="0", facts=[])
        run.run(Settings(), device=fake_gpu.uuid(1), facts=[])
        with pytest.raises(CarmaError, match="no GPU 7"):
            run.run(Settings(), device="7", facts=[])


def test_a_process_that_comes_meanwhile_is_left_alone(machine: Machine) -> None:
    with contextlib.ExitStack() as stack:
        came: list[int] = []

        def told(fact: object, found: Finding | None) -> None:
            if found is not None and not came:
                came.append(stack.enter_context(somebody(machine)))

        two = [fact for fact in FACTS if fact.name in ("gpm_activity", "mps_daemon")]
        first, second = run.run(Settings(), facts=two, busy_s=machine.busy_s, told=told).findings
        assert first.verdict is Verdict.HOLDS
        assert second.verdict is Verdict.UNKNOWN
        assert str(came[0]) in second.detail
        assert psutil.pid_exists(came[0])


def test_a_driver_that_hangs_costs_a_check_and_no_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "ANSWER_WITHIN_S", 2.0)
    machine.have(words=("kernels_hang",))
    found = machine.check("mps_daemon")
    assert found.verdict is Verdict.UNKNOWN
    assert "not answered" in found.detail
    assert machine.pids() == []


def test_a_check_that_raises_cannot_be_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: Bench) -> None:
        raise RuntimeError("the driver is odd")

    fact = dataclasses.replace(FACTS[0], check=broken)  # type: ignore[arg-type]
    told = run.run(Settings(), facts=[fact]).findings[0]
    assert (told.verdict, told.detail) == (Verdict.UNKNOWN, "RuntimeError: the driver is odd")
    assert told.failed, "it may be told another time"
    told = run.run(Settings(), facts=FACTS[1:2], within_s=-1.0).findings[0]
    assert told.detail == "no time was left for it"


def test_a_gpu_that_is_lost_meanwhile_costs_no_report(machine: Machine) -> None:
    def told(fact: object, found: Finding | None) -> None:
        if found is None:
            world = (machine.folder / "world").read_text()
            (machine.folder / "world").write_text(f"{world}fail nvmlDeviceGetMemoryInfo_v2 15\n")

    two = [fact for fact in FACTS if fact.name in ("gpm_activity", "mps_daemon")]
    found = run.run(Settings(), facts=two, busy_s=machine.busy_s, told=told).findings
    assert {each.verdict for each in found} == {Verdict.UNKNOWN}
    assert "fallen off the bus" in found[0].detail


def test_nothing_is_left_when_it_is_interrupted(machine: Machine) -> None:
    code = (
        "from carmad.config import Settings\n"
        "from carmad.selftest.facts import FACTS\n"
        "from carmad.selftest.run import run\n"
        "run(Settings(), facts=[f for f in FACTS if f.name == 'mps_fault'], busy_s=20)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    until(  # a server and three processes, one outside of MPS
        lambda: child.poll() is not None or len(machine.pids()) >= 4, "the processes"
    )
    assert child.poll() is None
    ours = [psutil.Process(pid) for pid in machine.pids()]
    ours += [each for each in psutil.Process(child.pid).children() if each not in ours]
    assert len(ours) == 5  # the control daemon, too
    child.send_signal(signal.SIGTERM)
    assert child.wait(PATIENCE_S) != 0
    _, alive = psutil.wait_procs(ours, timeout=PATIENCE_S)
    assert alive == []


# --- its report, and the settings ---


@pytest.fixture
def few(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Of the checks only two, and quickly."""
    whole = run.run
    two = [fact for fact in FACTS if fact.name in ("gpm_activity", "dcgm_activity")]
    monkeypatch.setattr(
        run, "run", lambda *args, **named: whole(*args, **named, facts=two, busy_s=machine.busy_s)
    )
    monkeypatch.setenv("CARMA_CONFIG", str(machine.folder / "carma.toml"))
    return machine


def cli(*words: str) -> int:
    return carma(["doctor", "--gpu", *words])


def test_the_report_as_json(few: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("--json") == 0
    text = capsys.readouterr().out
    found = TypeAdapter(report.Report).validate_json(text)
    assert found.to_json() == text.strip()
    assert (found.gpu, found.driver, found.cuda) == ("NVIDIA H100 80GB HBM3", "615.71", "13.4")
    assert json.loads(text)["schema"] == report.SCHEMA
    assert {each.fact: each.verdict for each in found.findings} == {
        "gpm_activity": Verdict.HOLDS,
        "dcgm_activity": Verdict.UNKNOWN,
    }
    assert found.findings[0].observed["sm_active_busy"] == 0.98


def test_proposed_settings_are_shown_and_written(
    few: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = few.folder / "carma.toml"
    before = '# mine\npolicy = "rr"\n\n[monitor]  # often\nwindow_s = 20.0\n'
    file.write_text(before)
    few.have(words=("gpm_in_ratios",))
    assert cli() == 1
    shown = capsys.readouterr().out
    assert "differs" in shown and 'source = "nvml"' in shown
    assert file.read_text() == before
    assert cli("--write") == 1
    assert file.read_text() == before + 'source = "nvml"\n'
    assert load(file, {}).monitor.source == "nvml"


def test_device_and_write_need_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert carma(["doctor", "--write"]) == 2
    assert "need --gpu" in capsys.readouterr().err


def test_settings_are_added_to_a_file_as_it_is(tmp_path: Path) -> None:
    its = {"collocation.mps": False, "estimation.context_mib": 600, "policy": "rr"}
    assert load(_file(tmp_path, configwriting.settings_text(its)), {}).estimation.context_mib == 600
    text = "# all of mine\ncollocation = {mps = true} # one line\n"
    merged = configwriting.merge_settings(text, its)
    assert "# all of mine" in merged and "# one line" in merged
    assert load(_file(tmp_path, merged), {}).collocation.mps is False
    with pytest.raises(CarmaError, match="not valid TOML"):
        configwriting.merge_settings("= 1", its)


def test_a_file_that_cannot_be_written_or_used_is_left(tmp_path: Path) -> None:
    file = _file(tmp_path, "polizy = 1\n")
    with pytest.raises(CarmaError, match="polizy"):
        configwriting.write_settings(file, {"policy": "rr"})
    assert file.read_text() == "polizy = 1\n"
    file.unlink()
    os.mkfifo(file)  # or a device: carmad may run with /dev/null
    with pytest.raises(CarmaError, match="is not a file"):
        configwriting.write_settings(file, {"policy": "rr"})
    file.unlink()
    file.mkdir()
    with pytest.raises(CarmaError) as error:
        configwriting.write_settings(file, {"policy": "rr"})
    assert 'policy = "rr"' in error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["carma.toml"]


def _file(folder: Path, text: str) -> Path:
    file = folder / "carma.toml"
    file.write_text(text)
    return file
