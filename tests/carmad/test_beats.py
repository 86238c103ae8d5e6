"""The heartbeats of the daemon's threads: who is late, who is told, and that each has one."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from carmad import beats
from carmad.threads import Threads
from tests.carmad.gpu.test_nvml import A, B, gpu
from tests.carmad.metrics.test_metrics_served import free_port
from tests.daemon import NO_KERNELS, Carmad, until
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.fake_nvml import FakeNvml

pytest_plugins = ("tests.fake_nvml",)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Threads that wait for it end with the test."""
    gate = threading.Event()
    yield gate
    gate.set()


def late(name: str) -> list[beats.Late]:
    return [each for each in beats.late() if each.thread == name]


def wait_at_the_gate(gate: threading.Event, what: str = "the gate") -> None:
    beats.at(what)
    gate.wait()


def test_a_thread_is_late_once_it_works_too_long_and_not_while_it_waits(
    gate: threading.Event,
) -> None:
    pool = Threads(1, "gatekeeper", late_s=0.0)
    done = pool.submit(wait_at_the_gate, gate)
    until(lambda: late("gatekeeper"), "it to be late")
    [its] = late("gatekeeper")
    assert (its.what, its.fatal) == ("the gate", False)
    assert "wait_at_the_gate" in beats.stack(its.ident)
    assert beats.ages()["gatekeeper"] > 0
    gate.set()
    done.result(PATIENCE_S)
    until(lambda: not late("gatekeeper"), "it to wait for work")
    assert beats.ages()["gatekeeper"] == 0
    pool.shutdown()
    assert "gatekeeper" not in beats.ages()


def test_one_that_died_stays_late(gate: threading.Event) -> None:
    def die() -> None:
        with beats.beating("mortal", 60.0, fatal=True):
            raise OSError("gone")

    def survive() -> None:
        with pytest.raises(OSError, match="gone"):
            die()

    thread = threading.Thread(target=survive)
    thread.start()
    thread.join()
    [its] = late("mortal")
    assert "gone" in str(its)
    assert its.fatal
    assert its.call == "none: it has ended"
    beats._BEATS.clear()


def test_an_incident_is_told_of_once_and_so_is_its_end(
    gate: threading.Event, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[beats.Late] = []
    fed: list[None] = []
    watcher = beats.Watcher(lambda: fed.append(None), told.append)
    pool = Threads(1, "dawdler", late_s=0.0)
    done = pool.submit(wait_at_the_gate, gate)
    until(lambda: late("dawdler"), "it to be late")
    watcher.look()
    watcher.look()
    assert [each.thread for each in told] == ["dawdler"]
    [line] = [record.message for record in caplog.records]
    assert re.match(r"the thread dawdler has been at the gate for \d+ s\. It is at\n", line)
    assert "wait_at_the_gate" in line
    assert len(fed) == 2, "it is not fatal"
    gate.set()
    done.result(PATIENCE_S)
    until(lambda: not late("dawdler"), "it to go on")
    watcher.look()
    assert len(caplog.records) == 1, "it may be late again in a moment"
    monkeypatch.setattr(beats, "CALM_S", 0.0)
    watcher.look()
    assert re.match("the thread dawdler goes on; it was late for", caplog.records[1].message)
    pool.shutdown()


def test_systemd_hears_nothing_while_one_that_is_fatal_is_late(gate: threading.Event) -> None:
    fed: list[None] = []
    watcher = beats.Watcher(lambda: fed.append(None))

    def serve() -> None:
        with beats.beating("vital", 0.0, fatal=True):
            wait_at_the_gate(gate)

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: late("vital"), "it to be late")
    watcher.look()
    assert not fed
    gate.set()
    thread.join()
    watcher.look()
    assert fed


# -- in a daemon

WITHOUT = {  # threads that need no heartbeat
    "heartbeats": "looks at the others; feeds systemd's watchdog, so that its silence is noticed",
    "APScheduler": "sleeps, and hands out chores to housekeeping's threads",
    "Thread-": "a timer of `threading`: it sleeps, and leaves a message",
}

LIST = """
import signal, sys, threading
from carmad import beats
def tell(*_):
    beating = set(beats._BEATS)
    names = [each.name for each in threading.enumerate() if each.ident not in beating]
    with open(sys.argv[-1], "w") as out:
        print("\\n".join(["listed", *names]), file=out)
signal.signal(signal.SIGUSR1, tell)
from carmad.daemon.main import main
sys.exit(main(sys.argv[1:-1]))
"""


def test_every_thread_of_a_daemon_has_a_heartbeat_or_a_reason(tmp_path: Path) -> None:

    settings = {
        "CARMA_METRICS__LISTEN": f"127.0.0.1:{free_port()}",
        "CARMA_COLLOCATION__MPS": "true",
    }
    daemon = Carmad(tmp_path, **NO_KERNELS | settings)
    listed = tmp_path / "threads"
    with daemon.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", LIST, *daemon.argv, str(listed)],
            env=daemon.env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    daemon._watch(process.pid)
    try:
        daemon.await_ready()
        daemon.ended(daemon.sh("true"))
        process.send_signal(signal.SIGUSR1)
        until(lambda: listed.exists() and "listed" in listed.read_text(), "the list")
        names = set(listed.read_text().split("\n")[1:]) - {""}
        assert {name for name in names if not name.startswith(tuple(WITHOUT))} == set()
        assert "threads" in {check["name"] for check in daemon.get("/v1/doctor")["checks"]}
    finally:
        daemon.clear_away()
        process.wait()


# -- a driver that hangs

# A call hangs after seconds instead of ten.
HURRIED = """
from carmad.daemon import monitor
from carmad.gpu import driver, events
driver.LANE_LATE_S = events._LATE_S = monitor.LATE_S = monitor.PATIENCE_S = 3.0
"""
HURRIED_DOCTOR = """
from cli.commands import doctor
from cli.main import main
doctor.DRIVER_WITHIN_S = doctor.STARTS_WITHIN_S = 2.0
main()
"""
ONE_CALL = "hang nvmlDeviceGetComputeRunningProcesses_v3"


class OnFakes(Carmad):
    """With NVML's fake instead of emulated GPUs."""

    def __init__(self, folder: Path, nvml: FakeNvml) -> None:
        super().__init__(
            folder, **NO_KERNELS, CARMA_MONITOR__SOURCE="nvml", CARMA_ACCESS__ROOT_JOBS="true"
        )
        self.argv = self.argv[2:]
        self.env |= {
            name: nvml.environment[name]
            for name in ("LD_LIBRARY_PATH", "FAKE_NVML_WORLD", "FAKE_NVML_LOG")
        }


@pytest.fixture
def daemon(tmp_path: Path, nvml: FakeNvml) -> Iterator[Carmad]:
    daemon = OnFakes(tmp_path, nvml)
    try:
        yield daemon
    finally:
        daemon.clear_away()


def states(daemon: Carmad) -> dict[str, str]:
    return {each["id"]: each["state"] for each in daemon.gpus()}


def test_a_gpu_that_hangs_is_stale_and_the_rest_goes_on(daemon: Carmad, nvml: FakeNvml) -> None:
    nvml.show(gpu(A, bus="1"), gpu(B, bus="2"))
    daemon.start_cold(first=HURRIED)
    until(lambda: states(daemon) == {A: "ok", B: "ok"}, "both to be read")
    two = daemon.sh("while [ ! -e go ]; do sleep 0.1; done; exit 3", gpus=2, memory_mib=100)
    daemon.await_state(two, "running", "starting")
    pid = until(daemon.processes, "its processes")[0]
    users = f"compute {pid} 100"
    nvml.show(gpu(A, users, bus="1"), gpu(B, users, bus="2"))
    own = lambda: [job["memory_mib"] for each in daemon.gpus() for job in each["jobs"]]  # noqa: E731
    until(lambda: own() == [100, 100], "its memory to be seen")

    nvml.show(gpu(A, users, bus="1"), gpu(B, users, ONE_CALL, bus="2"))
    until(lambda: states(daemon)[B] == "stale", "the GPU to be stale")
    assert states(daemon)[A] != "stale"
    [its] = [each for each in daemon.gpus() if each["id"] == B]
    assert "does not answer nvmlDeviceGetComputeRunningProcesses" in its["state_detail"]
    assert "does not answer nvmlDeviceGetComputeRunningProcesses" in daemon.carma("gpus")
    until(lambda: "the thread nvml-1 has been at" in daemon.log.read_text(), "the log")
    assert "nvmlDeviceGetComputeRunningProcesses" in daemon.log.read_text()
    assert any("nvml-1 hangs in nvml" in each for each in daemon.get("/v1/health")["troubles"])
    assert "nvml-1" in daemon.carma("status")

    (daemon.work / "go").touch()
    assert daemon.ended(two)["exit"]["code"] == 3, "its end does not wait for the driver"
    wide = daemon.sh("true", gpus=2, memory_mib=100)
    until(lambda: "does not answer nvml" in str(daemon.why(wide)), "the reason why it waits")
    assert daemon.ended(daemon.sh("true", gpus=1, memory_mib=100))["gpus"][0]["id"] == A
    daemon.stop()


def threads(daemon: Carmad) -> int:
    return len(list(Path(f"/proc/{daemon.pid}/task").iterdir()))


@pytest.mark.long
def test_all_gpus_may_hang_at_once(daemon: Carmad, nvml: FakeNvml) -> None:
    ids = [f"GPU-{number}" for number in range(8)]

    def show(*lines: str) -> None:
        nvml.show(*(gpu(each, *lines, bus=f"{bus:x}") for bus, each in enumerate(ids, 1)))

    def stale_s() -> list[int]:
        """For how long."""
        found = [
            re.search(r"is (\d+) s old: the driver does", g["state_detail"]) for g in daemon.gpus()
        ]
        return [int(each[1]) for each in found if each]

    show()
    daemon.start_cold(first=HURRIED)
    until(lambda: list(states(daemon).values()) == ["ok"] * 8, "all to be read")
    ends = daemon.sh("while [ ! -e go ]; do sleep 0.1; done; exit 3", gpus=8, memory_mib=100)
    cancelled = daemon.sh("exec sleep 1000", memory_mib=100)
    for job in (ends, cancelled):
        daemon.await_state(job, "running", "starting")
    show("hang nvmlDeviceGetMemoryInfo_v2")
    until(lambda: len(stale_s()) == 8, "all to be stale")
    before = threads(daemon)
    until(lambda: min(stale_s()) > 5, "many periods to pass")
    assert threads(daemon) == before
    (daemon.work / "go").touch()
    assert daemon.ended(ends)["exit"]["code"] == 3
    daemon.cancel(cancelled)
    assert daemon.ended(cancelled)["state"] == "cancelled"
    assert daemon.ended(daemon.sh("exit 4", gpus=0))["exit"]["code"] == 4
    daemon.stop()

    daemon.start_cold(first=HURRIED)
    waits = daemon.sh("true", gpus=8, memory_mib=100)
    hangs = "the driver does not answer nvmlDeviceGetMemoryInfo"
    until(lambda: hangs in str(daemon.why(waits)), "the reason why it waits")
    assert hangs in daemon.carma("doctor", rc=1)
    assert daemon.ended(daemon.sh("exit 5", gpus=0))["exit"]["code"] == 5
    show()
    assert daemon.ended(waits)["state"] == "succeeded"
    daemon.stop()


def hurried_doctor(daemon: Carmad) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", HURRIED_DOCTOR, "doctor"],
        env=daemon.env | {"CARMA_SOCKET": daemon.socket},
        cwd=daemon.work,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ran.returncode == 1, ran
    return ran.stdout


def test_a_driver_that_hangs_altogether_stops_no_job_without_gpus(
    daemon: Carmad, nvml: FakeNvml
) -> None:
    nvml.show("hang_init", gpu(A))
    daemon.start_cold(first=HURRIED)
    waits = daemon.sh("true", memory_mib=100)
    until(lambda: "does not answer nvmlInit" in str(daemon.why(waits)), "the reason why it waits")
    assert daemon.ended(daemon.sh("exit 4", gpus=0))["exit"]["code"] == 4
    assert "the driver has not answered for" in hurried_doctor(daemon)
    daemon.stop()
    daemon.start_cold(first=HURRIED)
    nvml.show(gpu(A))
    assert daemon.ended(waits)["state"] == "succeeded"
    daemon.stop()


def test_it_ends_at_once_though_its_monitor_hangs(daemon: Carmad, nvml: FakeNvml) -> None:
    """In a call that is made in its own thread: where events are asked for."""
    nvml.show(gpu(A, "hang nvmlDeviceRegisterEvents"))
    daemon.start_cold(first=HURRIED)
    troubles = lambda: daemon.get("/v1/health")["troubles"]  # noqa: E731
    hangs = "the thread monitor hangs in nvmlDeviceRegisterEvents"
    until(lambda: hangs in troubles(), "it to be late")
    assert daemon.ended(daemon.sh("exit 4", gpus=0))["exit"]["code"] == 4
    daemon.stop()
