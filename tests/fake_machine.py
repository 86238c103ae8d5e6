"""A pytest plugin: `machine` has fake GPUs (fake_gpu), for programs and for this process alike."""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pynvml
import pytest

from carmad.config import Settings
from carmad.gpu import events
from carmad.selftest import activity, run, training
from carmad.selftest.bench import PROBE, Probe
from carmad.selftest.facts import FACTS, Fact
from carmad.selftest.report import Finding
from tests import fake_gpu

BUSY_S = 0.7
TORCH = Path(__file__).with_name("fake_torch")


class Machine:
    """With one GPU, two, or one that is cut into MIG instances."""

    busy_s = BUSY_S
    facts: Sequence[Fact] = FACTS
    probe = PROBE

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

    def check(self, name: str, settings: Settings | None = None) -> Finding:
        few = [fact for fact in self.facts if fact.name == name]
        made = run.run(settings or Settings(), facts=few, busy_s=BUSY_S, probe=self.probe)
        (found,) = made.findings
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
    monkeypatch.setattr(activity, "ANSWERS_WITHIN_S", 5.0)
    monkeypatch.setattr(activity, "STARTS_WITHIN_S", 2.5)
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
