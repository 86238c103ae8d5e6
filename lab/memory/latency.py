"""How long a look takes beside the script's own imports, which it cannot spare.

Each script is looked at as the daemon does it, in turn with a process that runs only the script's
top-level imports. These times are of a processor, as the
machine may be busy; what a user waits for is by the clock. Scripts
that import torchvision, also through other packages, are left out: the pinned build of torch is
one that it cannot be imported with.
"""

from __future__ import annotations

import ast
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Report, Row, columns, of_rows, of_runs
from carmad.estimates.experience import try_program
from estimators.look import look
from estimators.tracer.report import Report as TraceReport
from lab.main import main
from lab.memory.scripts import PATIENT, SCRIPTS, Here, never, processor_s, spec_of

CHOSEN = ("autoencoder", "char_rnn", "dqn", "moe", "resnet_own", "unet", "vit")
MODEL = ("timm:resnet50", "--batch-size", "64")
CALL = "carma estimate timm:resnet50"


@dataclass(frozen=True, slots=True)
class Timed:
    script: str
    look_s: float  # medians
    imports_s: float

    @property
    def ratio(self) -> float:
        return self.look_s / self.imports_s


def measure(runs: int = 5) -> Report:
    timed = [_timed(SCRIPTS / f"{name}.py", runs) for name in CHOSEN]
    torch_s = statistics.median(
        _wall_s((sys.executable, "-c", "import torch")) for _ in range(runs)
    )
    first, fit = _calls(runs)
    rows = [
        Row(
            "cold look / own imports", "median", statistics.median(t.ratio for t in timed), "", 1.3
        ),
        Row("cold look / own imports", "most", max(one.ratio for one in timed), ""),
        of_runs(CALL, "first / import torch", [one / torch_s for one in first], "", bound=1.3),
        of_runs(f"{CALL} --fit 24G", "", fit, "s"),
    ]
    table = columns(
        timed,
        ("script", "{0.script}"),
        ("look s", "{0.look_s:.2f}"),
        ("imports s", "{0.imports_s:.2f}"),
        ("ratio", "{0.ratio:.2f}"),
        text=(0,),
    )
    notes = [
        f"medians of {runs} runs each; scripts: seconds of a processor, in turn with their imports",
        f"{CALL}: seconds by the clock, without a daemon",
    ]
    return of_rows(
        "A look beside a script's imports", rows, table, data={"scripts": timed}, notes=notes
    )


def _timed(path: Path, runs: int) -> Timed:
    body = ast.parse(path.read_text()).body
    imports: list[ast.stmt] = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
    program = ast.unparse(ast.Module(imports, []))
    looks, alone = [], []
    with tempfile.TemporaryDirectory(prefix="carma-look-") as folder:
        Path(folder, path.name).write_bytes(path.read_bytes())
        argv = (sys.executable, path.name)
        for _ in range(runs):
            looks.append(_look_s(argv, folder))
            only = (sys.executable, "-c", program)
            before = processor_s()
            ended = try_program(spec_of(only, folder), only, 60.0, never)
            alone.append(processor_s() - before)
            if ended.code != 0:  # a script whose imports fail is no yardstick
                sys.exit(f"the imports of {path.name} fail: {ended.output[-300:]}")
    print(f"{path.name}: {looks[-1]:.1f} s", file=sys.stderr, flush=True)
    return Timed(path.name, *map(statistics.median, (looks, alone)))


def _look_s(argv: tuple[str, ...], folder: str) -> float:
    before = processor_s()
    answer = look(spec_of(argv, folder), PATIENT, Here())
    if not isinstance(answer, TraceReport):
        sys.exit(f"{' '.join(argv)}: {answer.why}")
    return processor_s() - before


def _calls(runs: int) -> tuple[list[float], list[float]]:
    """How long a call takes, and `--fit`."""
    command = (sys.executable, "-c", "from cli.main import main; main()", "estimate")
    env = {**os.environ, "CARMA_SOCKET": "/nowhere"}
    first = [_wall_s((*command, *MODEL), env) for _ in range(runs)]
    fit = [_wall_s((*command, "--fit", "24G", MODEL[0]), env) for _ in range(runs)]
    return first, fit


def _wall_s(argv: Sequence[str], env: Mapping[str, str] | None = None) -> float:
    began = time.monotonic()
    subprocess.run(argv, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - began


if __name__ == "__main__":
    main("memory_latency", measure)
