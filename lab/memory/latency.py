"""How long a look takes beside the script's own imports, which it cannot spare.

Each script is looked at as the daemon does it, in a new process, in turn with a process that runs
only the script's top-level imports. Times are of a processor, as the machine may be busy. Scripts
that import torchvision, also through other packages, are left out: the pinned build of torch is
one that it cannot be imported with.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Report, Row, columns, of_rows, of_runs
from carmad.learned.experience import try_program
from estimators.look import look
from estimators.tracer.report import Report as TraceReport
from lab.main import main
from lab.memory.scripts import PATIENT, SCRIPTS, Here, never, processor_s, spec_of

CHOSEN = ("autoencoder", "char_rnn", "dqn", "moe", "resnet_own", "unet", "vit")
MODEL = ("timm:resnet50", "--batch-size", "64")


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
    model = [_look_s(MODEL, "/") for _ in range(runs)]
    rows = [
        Row(
            "cold look / own imports", "median", statistics.median(t.ratio for t in timed), "", 1.3
        ),
        Row("cold look / own imports", "most", max(one.ratio for one in timed), ""),
        of_runs(" ".join(MODEL), "cold", model, "s", bound=1.5),
    ]
    table = columns(
        timed,
        ("script", "{0.script}"),
        ("look s", "{0.look_s:.2f}"),
        ("imports s", "{0.imports_s:.2f}"),
        ("ratio", "{0.ratio:.2f}"),
        text=(0,),
    )
    notes = [f"medians of {runs} runs each, in turn; seconds of a processor"]
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
        for _ in range(runs):
            looks.append(_look_s((sys.executable, path.name), folder))
            argv = (sys.executable, "-c", program)
            before = processor_s()
            ended = try_program(spec_of(argv, folder), argv, 60.0, never)
            alone.append(processor_s() - before)
            if ended.code != 0:  # a script whose imports fail is no yardstick
                sys.exit(f"the imports of {path.name} fail: {ended.output[-300:]}")
    print(f"{path.name}: {looks[-1]:.1f} s", file=sys.stderr, flush=True)
    return Timed(path.name, statistics.median(looks), statistics.median(alone))


def _look_s(argv: tuple[str, ...], folder: str) -> float:
    before = processor_s()
    answer = look(spec_of(argv, folder), PATIENT, Here())
    if not isinstance(answer, TraceReport):
        sys.exit(f"{' '.join(argv)}: {answer.why}")
    return processor_s() - before


if __name__ == "__main__":
    main("memory_latency", measure)
