"""Which training scripts can be traced, and how long a look takes.

The scripts in `lab/scripts` are our own small ones, in the shapes that public repositories
have. Some are to be refused: one that would download a model, and those whose package is not
installed here (bitsandbytes, DeepSpeed, PEFT). Each is looked at as the daemon does it: in a new
process, with nothing remembered. With `--warm`, processes are forked from one that has imported
torch, so times are without that.

There is no GPU to check the estimates with. A script that also runs on the CPU is run there for two
steps (`lab.memory.held`), and what it holds there for certain bounds what the trace may say:
parameters, optimizer states, and the gradients or what is saved for the backward pass, whichever
is more. A trace with less is wrong, or with more than three times that and 8 MiB.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from benchmarks import ROOT
from benchmarks.harness import Report, Row, columns, of_rows, of_runs, until
from carmad.attempt.proc import descendants
from carmad.config import Estimation, Settings
from carmad.core.jobs.spec import JobSpec, Owner
from carmad.core.ports import Run, Trial
from carmad.estimates.experience import try_program
from estimators.look import TRACER, look
from estimators.tracer.report import Report as TraceReport
from lab.main import main
from lab.memory.truth import MIB
from tests.warm_tracer import Tracers

SCRIPTS = ROOT / "lab" / "scripts"
HELD = ROOT / "lab" / "memory" / "held.py"
# These take long to import: their scripts are not run on the CPU.
HEAVY = re.compile(
    r"^(import|from) (accelerate|deepspeed|lightning|peft|timm|torchvision|transformers)", re.M
)
OPTIONAL = re.compile(r"^(?:import|from) (bitsandbytes|deepspeed|peft)\b", re.M)
COMMANDS = {".py": "python {script}", ".sh": "bash {script}", ".ipynb": "jupyter execute {script}"}
PATIENT = Settings(estimation=Estimation(within_s=120.0))
SLACK, MOST, SPARE_MIB = 0.98, 3.0, 8.0
BINARIES = str(Path(sys.executable).parent)


class Here:
    """This machine, as an estimator sees it: without a past."""

    gpu = "NVIDIA A100-SXM4-40GB"
    driver = ""
    explain = False

    def __init__(self, tracers: Tracers | None = None) -> None:
        self._tracers = tracers

    def users(self) -> Sequence[Owner]:
        return ()

    def runs(self, owner: Owner) -> Sequence[Run]:
        return ()

    def trial(self, spec: JobSpec, argv: Sequence[str], within_s: float) -> Trial:
        if self._tracers is None or str(TRACER) != argv[1]:
            return try_program(spec, argv, within_s, never)
        with tempfile.TemporaryDirectory() as folder:
            answer, output = Path(folder, "answer"), Path(folder, "output")
            code = self._tracers.run(argv[1:], spec.cwd, answer, output, within_s)
            said = output.read_text(errors="replace")
            return Trial(answer.read_bytes(), said, code=code, timed_out=code is None)


@dataclass(frozen=True, slots=True)
class Looked:
    script: str
    command: str
    wall_s: tuple[float, ...]
    processor_s: tuple[float, ...]
    reserved_mib: float | None
    live_mib: float | None
    held_mib: float | None  # on the CPU, for certain; None: not known
    refused: str

    @property
    def outcome(self) -> str:
        if self.live_mib is None:
            return "refused, as it should be" if _is_to_be_refused(self.script) else "refused"
        if self.held_mib is None:
            return "traced"
        least, most = SLACK * self.held_mib, MOST * self.held_mib + SPARE_MIB
        return "traced" if least <= self.live_mib <= most else "wrong"


def measure(runs: int = 1, warm: bool = False) -> Report:
    scripts = sorted(path for path in SCRIPTS.iterdir() if path.suffix in COMMANDS)
    with closing(Tracers()) as tracers:
        here = Here(tracers if warm else None)
        looked = [_looked(path, here, runs, tracers) for path in scripts]
    torch_s = [_torch_alone() for _ in range(runs)]
    walls = [statistics.median(one.wall_s) for one in looked]
    said = [one.outcome for one in looked]
    wanted = sum(not _is_to_be_refused(one.script) for one in looked)
    rows = [
        Row("scripts", "traced", said.count("traced"), f"of {wanted}"),
        Row("scripts", "traced", 100 * said.count("traced") / wanted, "%", 95, least=True),
        Row("scripts", "wrong", said.count("wrong"), f"of {wanted}"),
        Row("scripts", "refused, and should not be", said.count("refused"), f"of {wanted}"),
        Row(
            "scripts", "with a bound from the CPU", sum(o.held_mib is not None for o in looked), ""
        ),
        Row("looks", "median of the scripts' medians", statistics.median(walls), "s", 3),
        Row("looks", "longest median", max(walls), "s"),
        of_runs("looks", "import torch, and nothing else", torch_s, "s"),
    ]
    table = columns(
        looked,
        ("script", "{0.script}"),
        ("outcome", "{0.outcome}"),
        ("wall s", lambda one: f"{statistics.median(one.wall_s):.2f}"),
        ("reserved MiB", lambda one: _mib(one.reserved_mib)),
        ("live MiB", lambda one: _mib(one.live_mib)),
        ("held on the CPU", lambda one: _mib(one.held_mib)),
        ("run by, if not python", lambda one: one.command),
        ("refused because", "{0.refused}"),
        text=(0, 1, 6, 7),
    )
    start = "forked from a process that has imported torch" if warm else "cold"
    return of_rows(
        "Looks at training scripts",
        rows,
        table,
        data={"import_torch_s": torch_s, "scripts": looked},
        notes=[f"{runs} runs each, one after the other, {start}"],
    )


def _is_to_be_refused(script: str) -> bool:
    if script == "hub_download.py":
        return True
    packages = OPTIONAL.findall((SCRIPTS / script).read_text())
    return any(find_spec(package) is None for package in packages)


def _mib(size: float | None) -> str:
    return "–" if size is None else f"{size:.1f}"


def _looked(path: Path, here: Here, runs: int, tracers: Tracers) -> Looked:
    first = next((line for line in path.read_text().splitlines() if line.startswith("# run: ")), "")
    command = first.removeprefix("# run: ") or COMMANDS[path.suffix]
    gpus, words = 1, command.format(script=path.name).split()
    if words[0].startswith("gpus="):
        gpus = int(words.pop(0).removeprefix("gpus="))
    plain = words[0] == "python"
    argv = (sys.executable, *words[1:]) if plain else tuple(words)
    walls, processors = [], []
    answer = None
    for _ in range(runs):
        with tempfile.TemporaryDirectory(prefix="carma-look-") as directory:
            for one in path.parent.iterdir():
                if one.suffix in COMMANDS:
                    shutil.copy(one, directory)
            before, begun = processor_s(), time.perf_counter()
            answer = look(spec_of(argv, directory, gpus), PATIENT, here)
            walls.append(time.perf_counter() - begun)
            processors.append(processor_s() - before)
            held = _held_mib(argv[1:], directory, gpus, tracers) if plain else None
    traced = answer if isinstance(answer, TraceReport) else None
    print(f"{path.name}: {walls[-1]:.1f} s", file=sys.stderr, flush=True)
    return Looked(
        path.name,
        "" if plain and len(words) == 2 and gpus == 1 else command,
        tuple(walls),
        tuple(processors),
        traced.reserved / MIB if traced else None,
        traced.floor / MIB if traced else None,
        held if traced else None,
        "" if traced else str(getattr(answer, "why", "")),
    )


def _held_mib(words: Sequence[str], directory: str, gpus: int, tracers: Tracers) -> float | None:
    """None if the script does not run on the CPU, or takes no optimizer step."""
    if words[0] == "-m":
        words = (f"{words[1]}.py", *words[2:])
    if HEAVY.search(Path(directory, words[0]).read_text()):
        return None
    answer, output = Path(directory, "answer"), Path(directory, "output")
    argv = (str(HELD), str(Path(directory, words[0])), *words[1:])
    code = tracers.run(argv, directory, answer, output, PATIENT.estimation.longest_s)
    lines = output.read_text(errors="replace").strip().splitlines()
    if code or not lines or not lines[-1].startswith("{"):
        return None
    most: dict[str, int] = json.loads(lines[-1])
    if not most:
        return None
    saved = most["saved"] if gpus == 1 else 0  # one process has only its share of the batch
    return (most["parameters"] + most["optimizer"] + max(most["gradients"], saved)) / MIB


def never() -> bool:
    return False


def _torch_alone() -> float:
    argv = (sys.executable, "-c", "import torch")
    begun = time.perf_counter()
    try_program(spec_of(argv, "/"), argv, 60.0, never)
    return time.perf_counter() - begun


def spec_of(argv: tuple[str, ...], cwd: str, gpus: int = 1) -> JobSpec:
    me = pwd.getpwuid(os.getuid())
    path = (("PATH", f"{BINARIES}:{os.environ['PATH']}"),)
    return JobSpec(
        argv=argv,
        user=me.pw_name,
        uid=me.pw_uid,
        gid=me.pw_gid,
        cwd=cwd,
        name="look",
        env=path,
        gpus=gpus,
    )


def processor_s() -> float:
    """Of a processor, by our descendants and those that they or we have waited for, once the
    attendants of trials have ended. Whatever waits for them stays, so the sum only grows."""
    until(lambda: not any("(carma:trial)" in stat for stat in _stats()), "the trials to end")
    ticks = sum(sum(map(int, stat.rpartition(")")[2].split()[11:15])) for stat in _stats())
    waited_for = os.times()
    return ticks / os.sysconf("SC_CLK_TCK") + waited_for.children_user + waited_for.children_system


def _stats() -> list[str]:
    found = []
    for pid in descendants():
        with suppress(OSError):
            found.append(Path(f"/proc/{pid}/stat").read_text())
    return found


if __name__ == "__main__":
    main("memory_scripts", measure)
