"""The campaign stopped in the midst of a stage: results stay, processes do not, and the next
command goes on."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals

import psutil
import pytest

from benchmarks import ROOT
from carmad.attempt.proc import own_environment
from tests.waiting import until

# Says what train.py says, without PyTorch.
TRAIN = """\
import json, sys, time
def say(what, **more): print(json.dumps({"event": what, **more}), flush=True)
def window(seconds):
    began, ended = time.monotonic(), []
    while not ended or ended[-1] < began + seconds:
        time.sleep(0.005)
        ended.append(time.monotonic())
    say("steps", began=began, ended=ended)
say("ready", name=sys.argv[1], seconds=0.0)
if "--held" in sys.argv:
    for line in sys.stdin: window(float(line))
else:
    seconds = next(float(word.partition("=")[2]) for word in sys.argv if "--seconds=" in word)
    for _ in range(max(1, round(seconds / 0.5))): window(0.5)
say("done")
"""
CAMPAIGN = """\
import runpy, sys
from pathlib import Path
from lab.hardware import training
training.TRAIN = Path(sys.argv.pop(1))
sys.argv[0] = "hardware"
runpy.run_module("lab.hardware", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Of temporary files, with a short path: sockets of MPS lie below."""
    folder = Path(tempfile.mkdtemp(prefix="k-", dir="/tmp"))
    (folder / "train.py").write_text(TRAIN)
    yield folder
    for process in of(folder):
        process.kill()
    shutil.rmtree(folder)


def of(folder: Path) -> list[psutil.Process]:
    """The processes that name it in their environment or command."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if not (env := own_environment(process.pid)):
                continue
            words = [*env.values(), *process.cmdline()]
            if process.status() != psutil.STATUS_ZOMBIE and str(folder) in " ".join(words):
                found.append(process)
    return found


@pytest.mark.parametrize(
    "stage",
    ["suspend", *(pytest.param(one, marks=pytest.mark.long) for one in ("pairs", "cost", "trace"))],
)
def test_a_stage_that_is_stopped_leaves_its_results_and_no_process(
    stage: str, folder: Path
) -> None:
    results = folder / "rehearsal" / f"{stage}.jsonl"

    def keys() -> list[str]:
        whole = results.read_text().splitlines() if results.exists() else []
        return [json.loads(line)["key"] for line in whole]

    def stopped(number: Signals, after: int) -> str:
        """In the midst of a case, once so many entries are kept. Returns its standard error."""
        command = [sys.executable, "-c", CAMPAIGN, str(folder / "train.py"), stage]
        command += ["--rehearse", f"--results={folder}"]
        env = os.environ | {"TMPDIR": str(folder)}
        with subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE) as campaign:
            until(lambda: len(keys()) >= after or campaign.poll() is not None, "an entry")
            until(lambda: len(of(folder)) > 2 or campaign.poll() is not None, "the next case")
            campaign.send_signal(number)
            said = campaign.communicate()[1].decode()
        assert campaign.returncode == (-SIGKILL if number == SIGKILL else 1), said
        until(lambda: not of(folder), "all of its processes to end")
        assert not list(folder.glob("cv-*")), "nor does it leave files"
        return said

    stopped(SIGTERM, after=1)
    first = keys()
    said = stopped(SIGKILL, after=len(first))
    assert keys()[: len(first)] == first
    assert set(Counter(keys()).values()) == {1}, "what was measured is not measured again"
    assert not [key for key in first if f"{stage}: {key}\n" in said], "nor begun"
