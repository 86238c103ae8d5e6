"""`carma estimate` on scripts of public repositories: which are traced, which refused, and why.

The repositories are in `corpus.toml`, each at a commit, with the commands that its own pages give;
the data are made. `--unseen`: those of `unseen.toml` instead, which nobody had looked at when the
tracer was written. The command fetches what is missing into `--folder`: from GitHub, or from the
clones in `--mirror`. `--python` has the packages of `requirements.txt`.

A script is *traced* if it gets a figure. What *stops* by itself with these packages is listed with
its error, and so is what *lacks* something that nobody has made here, such as weights to download:
as the lists judge, both are left out of the share that is traced, for they would not run on a GPU
either. What else is said to stop counts as *wrong*.
"""

from __future__ import annotations

import json
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.harness import Report, Row, columns, of_rows
from carmad.config import Estimation, Settings
from carmad.plugin import JobSpec, Refusal
from estimators.look import look
from estimators.tracer.report import Report as TraceReport
from lab.corpus.listed import LIST, UNSEEN, Script, chosen, prepare, read
from lab.main import main
from lab.memory.scripts import Here, processor_s, spec_of
from lab.memory.truth import MIB

SITE = Path(__file__).with_name("site")
PATIENT = Settings(estimation=Estimation(within_s=60.0))
FOLDER = Path("~/.cache/carma-corpus").expanduser()
IMPORTS = """import ast, pathlib, sys
script = pathlib.Path(sys.argv[1])
tree, sys.path[0] = ast.parse(script.read_bytes()), str(script.parent)
tree.body = [one for one in tree.body if isinstance(one, (ast.Import, ast.ImportFrom))]
exec(compile(tree, script, "exec"))"""


@dataclass(frozen=True, slots=True)
class Looked:
    repository: str
    run: str
    outcome: str  # traced, refused, wrong, stops, lacks
    why: str
    reserved_mib: float | None
    steps: int
    wall_s: float
    processor_s: float
    imports_s: float | None = None  # of a processor, for the script's own imports alone


def measure(
    folder: str = str(FOLDER),
    mirror: str = "",
    python: str = sys.executable,
    only: str = "",
    kept: str = "",
    unseen: bool = False,
) -> Report:
    """`kept`: a file of what earlier runs found, which is not looked at again."""
    before = _read_kept(Path(kept)) if kept else {}
    looked = []
    scripts = chosen(read(UNSEEN if unseen else LIST), only)
    for repository, script in scripts:
        if script.name in before:
            looked.append(before[script.name])
            continue
        source = Path(mirror) if mirror else None
        cwd = prepare(script, repository.clone(Path(folder), source))
        one = _looked(script, cwd, python)
        took = f"{one.wall_s:.0f} s"
        print(
            f"{one.outcome:8}{took:>6} {script.name}: {one.why[:160]}", file=sys.stderr, flush=True
        )
        looked.append(one)
        if kept:
            with Path(kept).open("a") as file:
                file.write(json.dumps([script.name, asdict(one)]) + "\n")
    pairs = zip(looked, scripts, strict=True)
    would = [one for one, (_, script) in pairs if not (script.stops or script.lacks)]
    said = [one.outcome for one in would]
    repositories = {one.repository for one in looked}
    beside = [one.processor_s / one.imports_s for one in would if one.imports_s] or [0]
    corpus, title = "corpus", "Scripts of public repositories"
    if unseen:
        corpus, title = "unseen", f"{title} that nobody had seen"
    would_run = f"{'unseen ' * unseen}scripts that would run"
    share = 100 * said.count("traced") / max(1, len(would))
    rows = [
        Row(corpus, "repositories", len(repositories), "", 40, least=True),
        Row(corpus, "scripts", len(looked), "", 60 if unseen else 100, least=True),
        Row(would_run, "traced", said.count("traced"), f"of {len(would)}"),
        Row(would_run, "traced", share, "%", 85 if unseen else 97, least=True),
        Row(would_run, "wrong", said.count("wrong"), f"of {len(would)}", 0),
        Row(would_run, "refused", said.count("refused"), f"of {len(would)}"),
        Row("looks", "median", statistics.median(one.wall_s for one in looked), "s"),
        Row("looks", "median", statistics.median(one.processor_s for one in looked), "processor s"),
        Row("looks", "median, of its imports", statistics.median(beside), "×", 1.3),
    ]
    table = columns(
        looked,
        ("repository", "{0.repository}"),
        ("command", "{0.run}"),
        ("outcome", "{0.outcome}"),
        ("MiB", lambda one: "–" if one.reserved_mib is None else f"{one.reserved_mib:.0f}"),
        ("steps", "{0.steps}"),
        ("wall s", "{0.wall_s:.1f}"),
        ("processor s", "{0.processor_s:.1f}"),
        ("why", "{0.why}"),
        text=(0, 1, 2, 7),
    )
    return of_rows(title, rows, table, data={"scripts": looked}, name="corpus_unseen" * unseen)


def _read_kept(path: Path) -> dict[str, Looked]:
    lines = path.read_text().splitlines() if path.exists() else []
    return {name: Looked(**fields) for name, fields in map(json.loads, lines)}


def command(script: Script, cwd: Path, python: str) -> JobSpec:
    """The job that a user would submit, with `python` in place of his own."""
    words = shlex.split(script.run)
    words = [python if word == "python" else word for word in words]
    words = [f"{word}:{SITE}" if word.startswith("PYTHONPATH=") else word for word in words]
    spec = spec_of(tuple(words), str(cwd), script.gpus)
    binaries = str(Path(python).parent)
    env = {**dict(spec.env), "PYTHONPATH": str(SITE)}
    env["PATH"] = f"{binaries}:{env['PATH']}"
    return replace(spec, env=tuple(env.items()))


def _looked(script: Script, cwd: Path, python: str) -> Looked:
    spec = command(script, cwd, python)
    before, begun = processor_s(), time.perf_counter()
    answer = look(spec, PATIENT, Here())
    wall_s, own_s = time.perf_counter() - begun, processor_s() - before
    if isinstance(answer, TraceReport):
        size, steps = answer.reserved / MIB, answer.steps
        why = answer.rest.crash if answer.rest else ""  # a late verdict
        outcome = "wrong" if why else "traced"
    else:
        size, steps, why = None, 0, answer.why
        outcome = _judge(script, answer)
    imports_s = _import(spec) if outcome == "traced" else None
    return Looked(
        script.repository, script.run, outcome, why, size, steps, wall_s, own_s, imports_s
    )


def _import(spec: JobSpec) -> float | None:
    """The processor seconds that the imports of the script take; None if it is started by another
    program than Python, or its imports need what its other lines do."""
    at = next((at for at, word in enumerate(spec.argv) if word.endswith(".py")), 0)
    words = (*(spec.argv[:at] or ("false",)), "-c", IMPORTS, spec.argv[at])
    before = processor_s()
    done = subprocess.run(words, cwd=spec.cwd, env=dict(spec.env), capture_output=True)
    return processor_s() - before if done.returncode == 0 else None


def _judge(script: Script, answer: Refusal) -> str:
    if script.stops and any(text in answer.why for text in script.stops.split("|")):
        return "stops"
    if script.lacks:
        return "lacks"
    return "wrong" if answer.crash else "refused"


if __name__ == "__main__":
    main("corpus", measure)
