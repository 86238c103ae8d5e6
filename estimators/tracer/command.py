"""Takes Python commands apart: the interpreter, the script, and what a launcher adds.

Known launchers are torchrun, deepspeed and `accelerate launch` (only their command line:
`accelerate config` is not read), of which the first process is traced. Anything else is left to
`find`, which runs as the user. Standard library only.
"""
# Few imports, as in `find`:
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

CONFIGURED = "accelerate's configuration was not read"
HINT = "give --gpu-mem, or submit the python command itself"
PYTHON = re.compile(r"python\d*(\.\d+)?t?")
FIND = (sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "find.py"))

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
LAST_OPTION = re.compile(r"-([bBdEiIOPqRsSuvx]*)([mc])(.*)", re.DOTALL)  # -um train
TORCHRUN = frozenset({"torch.distributed.run", "torch.distributed.launch"})
KERNELS = frozenset({"ipykernel", "ipykernel_launcher"})
ACCELERATE = frozenset({"accelerate.commands.launch", "accelerate.commands.accelerate_cli"})
# Options of these launchers that take no value.
FLAGS = frozenset(
    (
        *("standalone", "no-python", "run-path", "use-env", "use-agent-store"),
        *("multi-gpu", "cpu", "tpu", "ipex", "use-xpu", "debug", "quiet", "same-network"),
        *("dynamo-use-dynamic", "dynamo-use-fullgraph", "enable-cpu-affinity"),
        *("no-local-rank", "no-ssh", "no-ssh-check", "force-multi", "bind-cores-to-rank", "q"),
    )
)
SHARDED = frozenset({"use-deepspeed", "use-fsdp", "use-megatron-lm", "use-parallelism-config"})


class Unreadable(Exception):
    """The command cannot be tried; the message tells the job's owner why.

    `late`: it could not be in the time given. `crash`: completes "your script stops …", if that is
    the reason."""

    def __init__(self, why: str, *, late: bool = False, crash: str = "") -> None:
        super().__init__(why)
        self.late = late
        self.crash = crash


@dataclass(frozen=True, slots=True)
class Program:
    """A parsed Python command."""

    python: tuple[str, ...]  # everything before the script: `env A=b python -u`
    script: tuple[str, ...]  # the script or -m or -c, and what follows; `find` may put it in front
    processes: int = 0  # started by a launcher; 0: no launcher
    env: dict[str, str] = field(default_factory=dict)  # set by the launcher
    skipped: str = ""  # as in `Options`


def parse(argv: Sequence[str], gpus: int) -> Program:
    """Raises Unreadable."""
    front: tuple[str, ...] = ()
    if os.path.basename(argv[0]) == "env":
        count = next((i for i, a in enumerate(argv[1:], 1) if not ASSIGNMENT.fullmatch(a)), 0)
        if count == 0 or argv[count].startswith("-"):
            raise Unreadable(f"options of env are not known here: {HINT}")
        front, argv = tuple(argv[:count]), argv[count:]
    name = os.path.basename(argv[0])
    if PYTHON.fullmatch(name):
        return _python((*front, argv[0]), argv[1:], gpus)
    launch = _LAUNCHERS.get(name)
    if launch is not None:
        folder, slash, _ = argv[0].rpartition("/")
        beside = f"{folder}{slash}python"
        return launch((*front, *FIND, beside, argv[0]), argv[1:], gpus)
    return Program((*front, *FIND, "", argv[0]), tuple(argv[1:]))


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
        if kind == "m" and value in KERNELS:
            raise Unreadable("a notebook's kernel may run anything: give --gpu-mem")
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
    on_node = whole(each, gpus)  # gpu, auto
    return Program(python, script, on_node * whole(nodes.partition(":")[0], 1))


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
    count = whole(options.get("num-processes", ""), gpus)
    return Program(python, script, count if count > 1 else 0, env, CONFIGURED)


def _deepspeed(python: tuple[str, ...], words: Sequence[str], gpus: int) -> Program:
    options, script = _launched(words)
    each, nodes = options.get("num-gpus", ""), options.get("num-nodes", "1")
    count = whole(each, gpus) * whole(nodes, 1)
    if "no-local-rank" not in options:
        at = 2 if script[0] == "-m" else 1
        script = (*script[:at], "--local_rank=0", *script[at:])
    return Program(python, script, count)


def whole(text: str, otherwise: int) -> int:
    """The whole number that `text` is; `otherwise` if it is none, or too long to be meant."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else otherwise


_LAUNCHERS = {"torchrun": _torchrun, "accelerate": _accelerate, "deepspeed": _deepspeed}


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
        elif name in FLAGS:
            options[name] = ""
        else:
            options[name] = value if equals or not rest else rest.pop(0)
    if not rest:
        raise Unreadable("its launcher is given no script")
    return options, ("-m", *rest) if module else tuple(rest)
