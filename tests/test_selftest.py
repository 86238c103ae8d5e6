"""The self-test behind `carma doctor --gpu`, on a machine with fake GPUs (fake_gpu): each check
holds on one that does as documented, and differs on one that does not."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from benchmarks.hardware import facts
from benchmarks.hardware.visit import Visit
from carmad.config import Settings
from carmad.configfile import by_name, load
from carmad.errors import CarmaError
from carmad.gpu import events
from carmad.selftest import bench as benches
from carmad.selftest import faults, jobs, report, run, settings, training
from carmad.selftest.bench import Bench, Probe
from carmad.selftest.facts import FACTS, SECTIONS
from carmad.selftest.report import Finding, Verdict
from cli.main import run as carma
from docs.pages import hardware
from tests import fake_gpu

BUSY_S = 0.7
TORCH = Path(__file__).with_name("fake_torch")


class Machine:
    """With one GPU, two, or one that is cut into MIG instances."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._monkeypatch = monkeypatch

    def have(self, gpus: int = 1, dcgm: bool = False, words: tuple[str, ...] = ()) -> None:
        env = fake_gpu.environment(self.folder, gpus, dcgm)
        for name in ("FAKE_GPU", "FAKE_NVML_WORLD", "LD_LIBRARY_PATH", "PATH"):
            self._monkeypatch.setenv(name, env[name])
        fake_gpu.deviate(self.folder, *words)

    def world(self, *lines: str) -> None:
        (self.folder / "world").write_text("".join(f"{line}\n" for line in lines))

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def pids(self) -> list[int]:
        return [int(path.name) for path in (self.folder / "processes").glob("[0-9]*")]

    def check(self, name: str) -> Finding:
        fact = next(fact for fact in FACTS if fact.name == name)
        (found,) = run.run(Settings(), facts=[fact], busy_s=BUSY_S).findings
        return found


@pytest.fixture(scope="session")
def libraries() -> Iterator[Path]:
    if shutil.which("gcc") is None:
        pytest.skip("no gcc to compile the fake driver with")
    with tempfile.TemporaryDirectory(prefix="fake-", dir="/tmp") as folder:
        fake_gpu.environment(Path(folder))
        yield Path(folder, "lib")


@pytest.fixture
def machine(libraries: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(events, "_WAIT_MS", 20)
    monkeypatch.setattr(faults, "NEWS_WITHIN_S", 0.7)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(libraries / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(training, "python", lambda: "")
    with tempfile.TemporaryDirectory(prefix="gpu-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "lib").symlink_to(libraries)
        made = Machine(folder, monkeypatch)
        made.have()
        yield made


@pytest.fixture
def two_users(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user may not run this Python: the process only says that it is the other's."""
    if os.geteuid() != 0:
        pytest.skip("only root runs these checks")
    start = Probe.__init__

    def as_if(probe: Probe, command: Any, env: dict[str, str], uid: int | None = None) -> None:
        start(probe, command, env | ({} if uid is None else {"FAKE_UID": str(uid)}))

    monkeypatch.setattr(Probe, "__init__", as_if)


@pytest.fixture
def torch(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TORCH))
    monkeypatch.setattr(training, "python", lambda: sys.executable)


BOTH_WAYS = [
    ("memory_used", "reserved_is_free"),
    ("process_memory", "contexts_uncounted"),
    ("process_lists", "clients_unlisted"),
    ("process_leaves", "memory_lags"),
    ("busy_sampled", "kernels_unsampled"),
    ("mps_clients_sampled", "clients_unsampled"),
    ("mps_clients_sampled", "clients_alike"),
    ("context_unsampled", "contexts_sampled"),
    ("gpm_activity", "gpm_in_ratios"),
    ("gpm_traffic", "gpm_in_bytes"),
    ("mps_daemon", "no_mps"),
    ("mps_uuid", "no_uuids_under_mps"),
    ("mps_limit", "limit_ignored"),
    ("mps_fault", "fault_alone"),
    ("mps_fault", "fault_spreads"),
    ("mps_fault", "faults_unseen"),
    ("mps_terminate", "terminate_spreads"),
    ("contexts", "large_contexts"),
    ("own_kills", "kills_look_like_faults"),
    ("energy", "energy_doubled"),
]


@pytest.mark.parametrize("name", dict.fromkeys(name for name, _ in BOTH_WAYS))
def test_a_check_holds_where_the_driver_does_as_documented(machine: Machine, name: str) -> None:
    found = machine.check(name)
    assert found.verdict is Verdict.HOLDS, found
    assert not found.settings
    assert machine.pids() == []


@pytest.mark.parametrize(("name", "word"), BOTH_WAYS)
def test_a_check_differs_where_it_does_not(machine: Machine, name: str, word: str) -> None:
    machine.have(words=(word,))
    found = machine.check(name)
    assert found.verdict is Verdict.DIFFERS, found
    assert found.settings.keys() <= by_name(Settings()).keys()
    assert machine.pids() == []


@pytest.mark.parametrize(
    ("name", "word"), [("mps_multiuser", "no_multiuser"), ("mps_two_users", "users_mixed")]
)
def test_checks_with_two_users(machine: Machine, two_users: None, name: str, word: str) -> None:
    assert machine.check(name).verdict is Verdict.HOLDS
    machine.have(words=(word,))
    assert machine.check(name).verdict is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("name", "word"), [("dcgm_activity", "dcgm_in_percent"), ("dcgm_traffic", "dcgm_in_mib")]
)
def test_checks_of_dcgm(machine: Machine, name: str, word: str) -> None:
    assert machine.check(name).verdict is Verdict.UNKNOWN
    machine.have(dcgm=True)
    assert machine.check(name).verdict is Verdict.HOLDS
    machine.have(dcgm=True, words=(word,))
    assert machine.check(name).verdict is Verdict.DIFFERS


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("torch_context", "heavy"),
        ("allocator", "small_segments"),
        ("oom_text", "reworded"),
        ("profiler", "unwatched"),
        ("profiler", "host_times"),
    ],
)
def test_checks_with_torch(
    machine: Machine, torch: None, monkeypatch: pytest.MonkeyPatch, name: str, word: str
) -> None:
    assert machine.check(name).verdict is Verdict.HOLDS
    monkeypatch.setenv("FAKE_TORCH", word)
    assert machine.check(name).verdict is Verdict.DIFFERS
    monkeypatch.setenv("FAKE_TORCH", "no_gpu")
    found = machine.check(name)
    assert found.verdict is Verdict.UNKNOWN
    assert "finds no GPU" in found.detail


def test_a_large_context_of_torch_is_proposed(
    machine: Machine, torch: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_TORCH", "heavy")
    assert machine.check("torch_context").settings == {"estimation.context_mib": 2550}


def test_the_order_of_gpus(machine: Machine) -> None:
    assert machine.check("index_order").verdict is Verdict.UNKNOWN
    machine.have(gpus=2)
    assert machine.check("index_order").verdict is Verdict.HOLDS
    lines = (machine.folder / "world").read_text().splitlines()
    machine.world(*(line.replace("pci 0 10", "pci 0 90") for line in lines))
    assert machine.check("index_order").verdict is Verdict.DIFFERS


TOPOLOGY = "\x1b[4m\tGPU0\tGPU1\tCPU Affinity\x1b[0m\nGPU0\t X \t{}\t0-15\nGPU1\t{}\t X \t0-15\n"


def test_islands_beside_what_nvidia_smi_shows(machine: Machine) -> None:
    assert machine.check("islands").verdict is Verdict.UNKNOWN
    machine.have(gpus=2)
    lines = (machine.folder / "world").read_text().splitlines()
    apart = [*lines, "node 1"]
    for link, world, verdict in (
        ("NV18", [*lines, f"nvlink {fake_gpu.uuid(0)}"], Verdict.HOLDS),
        ("SYS", apart, Verdict.HOLDS),
        ("NV18", apart, Verdict.DIFFERS),
    ):
        machine.world(*world)
        machine.program("nvidia-smi", f"#!/bin/sh\nprintf '%b' {TOPOLOGY.format(link, link)!r}\n")
        assert machine.check("islands").verdict is verdict, (link, world)


def test_links_in_what_nvidia_smi_shows() -> None:
    assert faults.links_of(TOPOLOGY.format("NV18", "NV18"), 2) == [(0, 1)]
    assert faults.links_of(TOPOLOGY.format("PIX", "PIX"), 2) == []
    assert faults.links_of("no matrix", 2) is None


def test_a_process_on_a_mig_instance(machine: Machine) -> None:
    assert machine.check("mig_utilization").verdict is Verdict.UNKNOWN
    instance = "MIG-7a5e1b0a-7f31-4e11-9a3e-0123456789ab"
    world = [f"gpu {fake_gpu.uuid()}", "name H100", "pci 0 10 0", "memory 81559 600 0", "mig"]
    machine.world(*world, f"slot 1 0 {instance}", "name H100 MIG 1g.10gb", "memory 9856 0 0")
    assert machine.check("mig_utilization").verdict is Verdict.HOLDS
    fake_gpu.deviate(machine.folder, "contexts_unlisted")
    assert machine.check("mig_utilization").verdict is Verdict.DIFFERS


SYSTEMD_RUN = """\
#!{python} -IS
import subprocess, sys
command = [word for n, word in enumerate(sys.argv[1:]) if not word.startswith("--")]
subprocess.Popen(command, start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
"""


def test_the_kernels_kills_for_memory(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "has_systemd", lambda: False)
    assert machine.check("host_oom").verdict is Verdict.UNKNOWN
    monkeypatch.setattr(jobs, "has_systemd", lambda: True)
    machine.program("systemd-run", SYSTEMD_RUN.format(python=sys.executable))
    machine.program("systemctl", "#!/bin/sh\n")
    killed = (
        "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\nos.kill(os.getpid(), 9)"
    )
    monkeypatch.setattr(jobs, "GREEDY", killed)
    found = machine.check("host_oom")  # there is no cgroup: nobody counts
    assert found.verdict is Verdict.DIFFERS, found
    exited = jobs.records.exited

    def counted(directory: Path) -> Any:
        record = exited(directory)
        return record and dataclasses.replace(record, host_oom_kills=1)

    monkeypatch.setattr(jobs.records, "exited", counted)
    found = machine.check("host_oom")
    assert found.verdict is Verdict.HOLDS, found
    assert found.observed["cause"] == "host_oom"


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

        two = [fact for fact in FACTS if fact.name in ("context_unsampled", "busy_sampled")]
        first, second = run.run(Settings(), facts=two, busy_s=BUSY_S, told=told).findings
        assert first.verdict is Verdict.HOLDS
        assert second.verdict is Verdict.UNKNOWN
        assert str(came[0]) in second.detail
        assert psutil.pid_exists(came[0])


def test_a_driver_that_hangs_costs_a_check_and_no_more(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benches, "ANSWER_WITHIN_S", 2.0)
    machine.have(words=("kernels_hang",))
    found = machine.check("busy_sampled")
    assert found.verdict is Verdict.UNKNOWN
    assert "not answered" in found.detail
    assert machine.pids() == []


def test_a_check_that_raises_cannot_be_told(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: Bench) -> None:
        raise RuntimeError("the driver is odd")

    fact = dataclasses.replace(FACTS[0], check=broken)  # type: ignore[arg-type]
    late = dataclasses.replace(FACTS[1])
    told = run.run(Settings(), facts=[fact]).findings[0]
    assert (told.verdict, told.detail) == (Verdict.UNKNOWN, "RuntimeError: the driver is odd")
    told = run.run(Settings(), facts=[late], within_s=-1.0).findings[0]
    assert told.detail == "no time was left for it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_is_interrupted(machine: Machine, number: int) -> None:
    code = (
        "from carmad.config import Settings\n"
        "from carmad.selftest.facts import FACTS\n"
        "from carmad.selftest.run import run\n"
        "run(Settings(), facts=[f for f in FACTS if f.name == 'mps_fault'], busy_s=20)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while len(machine.pids()) < 4:  # a server and three processes, one outside of MPS
        assert child.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    ours = [psutil.Process(pid) for pid in machine.pids()]
    ours += [each for each in psutil.Process(child.pid).children() if each not in ours]
    assert len(ours) == 5  # the control daemon, too
    child.send_signal(number)
    assert child.wait(60) != 0
    _, alive = psutil.wait_procs(ours, timeout=10)
    assert alive == []


# --- its report, and the settings ---


def test_every_fact_has_a_check_or_says_how_to_find_out() -> None:
    assert len({fact.name for fact in FACTS}) == len(FACTS)
    assert all(fact.check or fact.by_hand for fact in FACTS)
    checked = {name for name, _ in BOTH_WAYS} | {
        *("mps_multiuser", "mps_two_users", "dcgm_activity", "dcgm_traffic", "torch_context"),
        *("allocator", "oom_text", "profiler", "index_order", "islands", "mig_utilization"),
        "host_oom",
    }
    assert checked == {fact.name for fact in FACTS if fact.check}, "each is tried both ways here"
    assert all(SECTIONS.values())


@pytest.fixture
def few(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Of the checks only two, and quickly."""
    whole = run.run
    two = [fact for fact in FACTS if fact.name in ("gpm_activity", "managed_memory")]
    monkeypatch.setattr(
        run, "run", lambda *args, **named: whole(*args, **named, facts=two, busy_s=BUSY_S)
    )
    monkeypatch.setenv("CARMA_CONFIG", str(machine.folder / "carma.toml"))
    return machine


def cli(*words: str) -> int:
    return carma(["doctor", "--gpu", *words])


def test_the_report_as_json(few: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("--json") == 0
    text = capsys.readouterr().out
    found = report.read(text)
    assert found.to_json() == text.strip()
    assert (found.gpu, found.driver, found.cuda) == ("NVIDIA H100 80GB HBM3", "615.71", "13.4")
    assert json.loads(text)["schema"] == report.SCHEMA
    assert {each.fact: each.verdict for each in found.findings} == {
        "gpm_activity": Verdict.HOLDS,
        "managed_memory": Verdict.UNKNOWN,
    }
    assert found.findings[1].observed["sm_active_busy"] == 0.98
    with pytest.raises(CarmaError, match="not a report"):
        report.read("{}")


def test_proposed_settings_are_shown_and_written(
    few: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    file = few.folder / "carma.toml"
    before = '# mine\npolicy = "rr"\n\n[monitor]  # often\nwindow_s = 20.0\n'
    file.write_text(before)
    few.have(words=("gpm_in_ratios",))
    assert cli() == 1
    shown = capsys.readouterr().out
    assert "differs" in shown and "by hand" in shown and 'source = "nvml"' in shown
    assert file.read_text() == before
    assert cli("--write") == 1
    assert file.read_text() == before + 'source = "nvml"\n'
    assert load(file, {}).monitor.source == "nvml"


def test_device_and_write_need_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert carma(["doctor", "--write"]) == 2
    assert "need --gpu" in capsys.readouterr().err


def test_settings_are_added_to_a_file_as_it_is(tmp_path: Path) -> None:
    its = {"collocation.mps": False, "estimation.context_mib": 600, "policy": "rr"}
    assert load(_file(tmp_path, settings.lines(its)), {}).estimation.context_mib == 600
    text = "# all of mine\ncollocation = {mps = true} # one line\n"
    merged = settings.merged(text, its)
    assert "# all of mine" in merged and "# one line" in merged
    assert load(_file(tmp_path, merged), {}).collocation.mps is False
    with pytest.raises(CarmaError, match="not valid TOML"):
        settings.merged("= 1", its)


def test_a_file_that_cannot_be_written_or_used_is_left(tmp_path: Path) -> None:
    file = _file(tmp_path, "polizy = 1\n")
    with pytest.raises(CarmaError, match="polizy"):
        settings.write(file, {"policy": "rr"})
    assert file.read_text() == "polizy = 1\n"
    file.unlink()
    file.mkdir()
    with pytest.raises(CarmaError) as error:
        settings.write(file, {"policy": "rr"})
    assert 'policy = "rr"' in error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["carma.toml"]


def _file(folder: Path, text: str) -> Path:
    file = folder / "carma.toml"
    file.write_text(text)
    return file


# --- the stage of the campaign, and the page ---


def test_the_stage_keeps_an_entry_per_fact_and_goes_on_where_it_ended(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("context_unsampled", "mps_uuid", "islands")
    monkeypatch.setattr(facts, "CHECKED", [fact for fact in FACTS if fact.name in few])
    visit = Visit(tmp_path / "h100", "facts", rehearse=True)
    visit.keep("mps_uuid", {"verdict": "differs", "detail": "as | it was"})
    facts.measure(visit)
    entries = visit.entries()
    assert {name: entry["verdict"] for name, entry in entries.items()} == {
        "mps_uuid": "differs",
        "context_unsampled": "holds",
        "islands": "cannot be told here",
    }
    kept = entries["context_unsampled"]
    assert kept["gpu"] == "NVIDIA H100 80GB HBM3" and kept["driver"] and kept["date"]
    about, table = facts.blocks(visit)
    assert "1 hold and 1 differ" in about
    assert table.count("\n") == 4 and "as \\| it was" in table
    facts.measure(dataclasses.replace(visit, until=0.0))
    assert len((tmp_path / "h100/facts.jsonl").read_text().splitlines()) == 3


def test_a_fact_whose_check_hangs_is_not_kept(
    libraries: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = ("context_unsampled", "islands")
    monkeypatch.setattr(facts, "CHECKED", [fact for fact in FACTS if fact.name in few])
    monkeypatch.setattr(facts, "FACT_S", 0.0)
    visit = Visit(tmp_path / "h100", "facts", rehearse=True)
    facts.measure(visit)
    assert visit.entries() == {}


def test_the_page_says_where_each_fact_was_seen(tmp_path: Path) -> None:
    assert "no report of a real GPU has been committed" in hardware.page(tmp_path)
    where = {"gpu": "NVIDIA H200", "driver": "580.1", "date": "2026-12-01T10:00:00Z"}
    visit = Visit(tmp_path / "h200", "facts", rehearse=False)
    for name, verdict in (
        ("energy", Verdict.DIFFERS),
        ("energy", Verdict.HOLDS),  # a later visit's
        ("mps_fault", Verdict.DIFFERS),
        ("islands", Verdict.UNKNOWN),
    ):
        visit.keep(name, {**where, "fact": name, "verdict": verdict, "detail": "it fell"})
    page = hardware.page(tmp_path)
    assert "- NVIDIA H200, driver 580.1, 2026-12-01\n" in page
    seen = {name: _row(page, name) for name in ("energy", "mps_fault", "islands", "contexts")}
    assert seen["energy"].endswith("| NVIDIA H200, driver 580.1, 2026-12-01 |")
    assert "**differs** on NVIDIA H200, driver 580.1, 2026-12-01: it fell" in seen["mps_fault"]
    assert seen["islands"].endswith("| not yet |")
    assert seen["contexts"].endswith("| not yet |")


def _row(page: str, name: str) -> str:
    return next(line for line in page.splitlines() if f"| `{name}` |" in line)
