"""Takes Python commands apart: what stands in front, the interpreter and the script; and has the
options of the tracer, which runs in their place.

Launchers are modules: what they start, `following` sees. Anything else is left to `find`, which
runs as the user. Standard library only.
"""
# Few imports, as in `find`:
# ruff: noqa: PTH118, PTH119, PTH120

from __future__ import annotations

import json
import os
import re
import stat
import sys
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

HINT = "give --gpu-mem, or submit the python command itself"
PYTHON = re.compile(r"python\d*(\.\d+)?t?")
LINE_BYTES = 256  # that the kernel reads of a first line
FIND = (sys.executable, "-I", "-S", os.path.join(os.path.dirname(__file__), "find.py"))

ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
LAST_OPTION = re.compile(r"-([bBdEiIOPqRsSuvx]*)([mc])(.*)", re.DOTALL)  # -um train
KERNELS = frozenset({"ipykernel", "ipykernel_launcher"})
LAUNCHERS = {  # programs that are these modules
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
    "deepspeed": "deepspeed.launcher.runner",
}

# How many words of their own follow, besides options; the options that have a value.
PREFIXES = {
    "env": (0, ""),
    "nohup": (0, ""),
    "setsid": (0, ""),
    "time": (0, "fo"),
    "nice": (0, "n"),
    "ionice": (0, "cn"),
    "stdbuf": (0, "ioe"),
    "timeout": (1, "ks"),
    "taskset": (1, ""),
    "numactl": (0, "CmNi"),
    "flock": (1, "wE"),
    "xvfb-run": (0, "nsefp"),
    "srun": (0, "nNpGctJ"),
}


@dataclass(frozen=True)
class Options:
    """The tracer's options, passed as one argument of its command line."""

    within_s: float  # of a processor, without imports: then say how far it came
    longest_s: float  # by the clock, imports included: likewise
    rest_s: float  # of a processor: for what follows two steps, unless they took longer
    host_memory_mib: int
    gpu: str = ""  # the model, as NVML names it; "": an A100
    gpus: int = 1  # the job's
    has_uuids: bool = False  # the job's GPUs are named to it by UUIDs instead of indices
    explain: bool = False  # with what, where, and what would help
    skipped: str = ""  # of the command, what is left out and might prevent the script's failure
    note: str = ""  # on what is traced of it
    patches: Sequence[Sequence[str]] = ()  # of libraries: as in `patching.install`

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Options:
        return cls(**json.loads(text))


class Unreadable(Exception):
    """The command cannot be tried; the message tells the job's owner why.

    `late`: it could not be in the time given. `crash`: completes "your script stops …", if that is
    the reason."""

    def __init__(self, why: str, *, late: bool = False, crash: str = "") -> None:
        super().__init__(why)
        self.late = late
        self.crash = crash


@dataclass(frozen=True)
class Program:
    """A parsed Python command."""

    python: tuple[str, ...]  # everything before the script: `env A=b python -u`
    script: tuple[str, ...]  # the script or -m or -c, and what follows; `find` may put it in front


def parse(argv: Sequence[str]) -> Program:
    """Raises Unreadable."""
    front: tuple[str, ...] = ()
    if os.path.basename(argv[0]) == "env":
        count = next((i for i, a in enumerate(argv[1:], 1) if not ASSIGNMENT.fullmatch(a)), 0)
        if count == 0 or argv[count].startswith("-"):
            raise Unreadable(f"options of env are not known here: {HINT}")
        front, argv = tuple(argv[:count]), argv[count:]
    name = os.path.basename(argv[0])
    if PYTHON.fullmatch(name):
        return _parse_python((*front, argv[0]), argv[1:])
    folder, slash, _ = argv[0].rpartition("/")
    beside = (*front, *FIND, f"{folder}{slash}python", argv[0])
    if name in LAUNCHERS:
        return Program(beside, ("-m", LAUNCHERS[name], *argv[1:]))
    return Program((*front, *FIND, "", argv[0]), tuple(argv[1:]))


def _parse_python(python: tuple[str, ...], words: Sequence[str]) -> Program:
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
        return Program(python, (f"-{kind}", value, *rest))
    if not rest or rest[0] == "-":
        raise Unreadable("its program comes from the terminal or a pipe, not from a file")
    return Program(python, tuple(rest))


def interpreter(script: str | None) -> tuple[str, ...]:
    """The command in a script's first line; () if there is none, or none to be read."""
    line = b""
    with suppress(OSError), open(script or "", "rb", opener=_open_at_once) as file:
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            line = file.readline(LINE_BYTES)
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    if words and os.path.basename(words[0]) == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
    return tuple(words)


def _open_at_once(path: str, flags: int) -> int:
    """A pipe as well, which is not read."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def whole(text: str, otherwise: int) -> int:
    """The whole number that `text` is; `otherwise` if it is none, or too long to be meant."""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else otherwise


def unwrap(words: Sequence[str]) -> list[str]:
    """A command without `nohup`, `nice -n 10`, `timeout 3h` and their like in front."""
    rest = list(words)
    while rest and (base := os.path.basename(rest[0])) in PREFIXES and base != "env":
        own, valued = PREFIXES[base]
        _, rest = take_options(rest[1:], [f"-{letter}" for letter in valued])
        del rest[:own]
    return rest


def take_options(words: Sequence[str], valued: Container[str]) -> tuple[dict[str, str], list[str]]:
    """The options in front, with their values; and what follows. `valued`: those whose value is a
    word of its own."""
    rest, given = list(words), {}
    while rest and rest[0].startswith("-"):
        option, equals, value = rest.pop(0).partition("=")
        given[option] = rest.pop(0) if option in valued and not equals and rest else value
    return given, rest
