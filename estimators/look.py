"""Tries a job's script: turns its command into the tracer's, runs it briefly, reads the report.

The tracer runs in the job's own Python, with the same interpreter options, a leading `env A=b`,
`-m` and `-c`. Known launchers are torchrun and `accelerate launch` (only their command line:
`accelerate config` is not read), of which the first process is traced. Nothing that the command
names is opened or looked for here, as the daemon is root: which Python a script's `#!` line names
is found out in the trial, as the user (`tracer.find`).
"""

from __future__ import annotations

import importlib.util
import re
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from carmad.plugin import JobSpec, Refusal, Server, Settings, Trial
from estimators.tracer import find
from estimators.tracer.find import HINT, PYTHON
from estimators.tracer.options import Options
from estimators.tracer.report import Report, loads

TRACER = Path(__file__).parent / "tracer"
FIND = (sys.executable, "-I", "-S", str(Path(find.__file__)))
SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "fish"))  # refused without a trial
MOST_LETTERS = 500  # of a refusal, whose text the script controls
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
LAST_OPTION = re.compile(r"-([bBdEiIOPqRsSuvx]*)([mc])(.*)", re.DOTALL)  # -um train
TORCHRUN = frozenset({"torch.distributed.run", "torch.distributed.launch"})
ACCELERATE = frozenset({"accelerate.commands.launch", "accelerate.commands.accelerate_cli"})
# Options of these launchers that take no value.
FLAGS = frozenset(
    (
        *("standalone", "no-python", "run-path", "use-env", "use-agent-store"),
        *("multi-gpu", "cpu", "tpu", "ipex", "use-xpu", "debug", "quiet", "same-network"),
        *("dynamo-use-dynamic", "dynamo-use-fullgraph", "enable-cpu-affinity"),
    )
)
SHARDED = frozenset({"use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config"})


class Unreadable(Exception):
    """The command cannot be tried; the message tells the job's owner why. `crash`: completes "your
    script stops …", if that is the reason."""

    def __init__(self, why: str, crash: str = "") -> None:
        super().__init__(why)
        self.crash = crash


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed Python command."""

    python: tuple[str, ...]  # everything before the script: `env A=b python -u`
    script: tuple[str, ...]  # the script or -m or -c, and what follows; `find` may put it in front
    processes: int = 0  # started by a launcher; 0: no launcher
    env: dict[str, str] = field(default_factory=dict)  # set by the launcher


def look(spec: JobSpec, settings: Settings, server: Server) -> Report | Refusal:
    """Run two optimizer steps of the job's script without a GPU."""
    began = time.monotonic()
    try:
        program = parse(spec)
        options = Options(
            within_s=settings.estimation.within_s,
            host_memory_mib=settings.estimation.host_memory_mib,
            gpu=server.gpu,
            gpus=spec.gpus,
            processes=program.processes,
            explain=server.explain,
            env=program.env,
        )
        argv = (*program.python, str(TRACER), options.dumps(), *program.script)
        return report(server.trial(spec, argv, options.within_s), options.within_s)
    except Unreadable as error:
        return Refusal(str(error), "look", time.monotonic() - began, error.crash)


def report(trial: Trial, within_s: float) -> Report:
    """The trial's report. Raises Unreadable with the reason if there is none."""
    if trial.error:
        raise Unreadable(f"its Python did not start: {trial.error}")
    if trial.answer:
        try:
            answer = loads(trial.answer)
        except ValueError:
            raise Unreadable("its tracer was cut short") from None
        if isinstance(answer, Report):
            return answer
        raise Unreadable(_bounded(answer.why), _bounded(answer.crash))
    if trial.beyond:
        raise Unreadable(trial.beyond)
    if trial.timed_out:
        raise Unreadable(f"it took no two optimizer steps within {within_s:g} s")
    said = next((line for line in reversed(trial.output.splitlines()) if line.strip()), "")
    words = f": {said.strip()[:200]}" if said else ""
    if trial.signal is not None:
        known = {int(one): one.name for one in signal.Signals}  # not the real-time ones between
        name = known.get(trial.signal, f"signal {trial.signal}")
        raise Unreadable(f"{name} ended it before two optimizer steps{words}")
    raise Unreadable(f"it left with status {trial.code} before two optimizer steps{words}")


def _bounded(text: str) -> str:
    return text[:MOST_LETTERS].encode(errors="replace").decode()


def parse(spec: JobSpec) -> Program:
    """Raises Unreadable."""
    argv = spec.argv
    if argv[0].startswith("timm:"):
        return _timm(argv)
    front: tuple[str, ...] = ()
    if Path(argv[0]).name == "env":
        count = next((i for i, a in enumerate(argv[1:], 1) if not ASSIGNMENT.fullmatch(a)), 0)
        if count == 0 or argv[count].startswith("-"):
            raise Unreadable(f"options of env are not known here: {HINT}")
        front, argv = argv[:count], argv[count:]
    command = Path(argv[0])
    if PYTHON.fullmatch(command.name):
        return _python((*front, argv[0]), argv[1:], spec.gpus)
    if command.name in ("torchrun", "accelerate"):
        folder, slash, _ = argv[0].rpartition("/")
        beside = f"{folder}{slash}python"
        launch = _torchrun if command.name == "torchrun" else _accelerate
        return launch((*front, *FIND, beside, argv[0]), argv[1:], spec.gpus)
    if command.name in SHELLS:
        raise Unreadable(f"{command.name} is no Python command: {HINT}")
    return Program((*front, *FIND, "", argv[0]), argv[1:])


def _timm(argv: Sequence[str]) -> Program:
    missing = [name for name in ("torch", "timm") if importlib.util.find_spec(name) is None]
    if missing:
        lacks = " and ".join(missing)
        raise Unreadable(f"CARMA's Python has no {lacks}: pip install 'carma[estimators]'")
    name = argv[0].removeprefix("timm:")
    return Program((sys.executable,), (str(TRACER / "timm_model.py"), name, *argv[1:]))


def _python(python: tuple[str, ...], words: Sequence[str], gpus: int) -> Program:
    """`words`: what follows the interpreter's name."""
    rest = list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        last = LAST_OPTION.fullmatch(word)
        if last is None:
            python = (*python, word, *(rest[:1] if word in ("-W", "-X") else ()))
            rest = rest[1:] if word in ("-W", "-X") else rest
            continue
        flags, kind, value = last.groups()
        value = value or (rest.pop(0) if rest else "")
        python = (*python, f"-{flags}") if flags else python
        if kind == "m" and value in TORCHRUN:
            return _torchrun(python, rest, gpus)
        if kind == "m" and value in ACCELERATE:
            return _accelerate(python, ["launch", *rest], gpus)
        return Program(python, (f"-{kind}", value, *rest))
    if not rest or rest[0] == "-":
        raise Unreadable("its program comes from the terminal or a pipe, not from a file")
    return Program(python, tuple(rest))


def _torchrun(python: tuple[str, ...], words: Sequence[str], gpus: int) -> Program:
    options, script = _launched(words)
    each, nodes = options.get("nproc-per-node", "1"), options.get("nnodes", "1")
    on_node = int(each) if each.isdigit() else gpus  # gpu, auto
    first = nodes.partition(":")[0]
    return Program(python, script, on_node * (int(first) if first.isdigit() else 1))


def _accelerate(python: tuple[str, ...], words: Sequence[str], gpus: int) -> Program:
    if not words or words[0] != "launch":
        raise Unreadable(f"of accelerate, only `accelerate launch` is known: {HINT}")
    options, script = _launched(words[1:])
    if "config-file" in options:
        raise Unreadable("accelerate's --config_file is not read: give --gpu-mem")
    told = {
        "mixed-precision": "ACCELERATE_MIXED_PRECISION",
        "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    }
    env = {variable: options[name] for name, variable in told.items() if name in options}
    given = options.get("num-processes", "")
    count = int(given) if given.isdigit() else gpus
    return Program(python, script, count if count > 1 else 0, env)


def _launched(words: Sequence[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """A launcher's options, by name without dashes, and the command that it launches."""
    options: dict[str, str] = {}
    rest = list(words)
    module = False
    while rest and rest[0].startswith("-"):
        name, equals, value = rest.pop(0).lstrip("-").partition("=")
        name = name.replace("_", "-")
        if name in SHARDED:
            raise Unreadable(f"--{name} shards the model over processes, which is not traced")
        if name in ("m", "module"):
            module = True
        elif name not in FLAGS:
            options[name] = value if equals or not rest else rest.pop(0)
    if not rest:
        raise Unreadable("its launcher is given no script")
    return options, ("-m", *rest) if module else tuple(rest)
