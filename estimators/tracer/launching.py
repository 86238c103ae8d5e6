"""What a launcher starts: found out by the launcher itself, up to where it would start it.

torchrun and `accelerate launch` read their own options and configuration files here, with the
job's GPUs. Of the processes that they would start the first is traced.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

from .command import HINT
from .confine import show_to_python

TORCH = frozenset(("torch.distributed.run", "torch.distributed.launch"))
CLI, ACCELERATE = "accelerate.commands.accelerate_cli", "accelerate.commands.launch"
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Launched:
    words: list[str]  # the script or -m, and its arguments
    processes: int  # over all nodes; 0: just this one, without a process group's environment


class Unlaunched(Exception):
    """The launcher would not start a Python script; the message says why."""


class _Start(BaseException):
    """Raised where the launcher would start something. No launcher handles it."""

    def __init__(self, words: list[str], processes: int) -> None:
        super().__init__()
        self.launched = Launched(words, processes)
        self.env = dict(os.environ)


def is_launcher(words: list[str]) -> bool:
    return words[0] == "-m" and words[1] in TORCH | {CLI, ACCELERATE}


def launch(words: list[str]) -> Launched:
    """`words`: -m, a launcher, and its arguments. Changes the environment as it does. Raises
    Unlaunched."""
    _, module, *arguments = words
    if module == CLI:
        if arguments[:1] != ["launch"]:
            raise Unlaunched(f"of accelerate, only `accelerate launch` is known: {HINT}")
        module, arguments = ACCELERATE, arguments[1:]
    before, sys.argv[:] = dict(os.environ), [module, *arguments]
    try:
        elastic = importlib.import_module("torch.distributed.run")
        elastic.elastic_launch = _start_many  # type: ignore[attr-defined]
        main: Any = importlib.import_module(module)
        if module == ACCELERATE:
            main.subprocess = SimpleNamespace(Popen=_start_one)
            checks: Any = importlib.import_module("accelerate.utils.launch")
            checks.is_port_in_use = lambda *_: False  # it would open a socket
        main.main()
    except _Start as start:
        _change_environment(before, start.env)
        return start.launched
    except SystemExit as error:
        raise Unlaunched(f"its launcher left with status {error.code}") from None
    except Exception as error:
        raise Unlaunched(f"its launcher failed: {type(error).__name__}: {error}") from error
    raise Unlaunched("its launcher started nothing")


def _start_many(config: Any, entrypoint: Any) -> Any:
    """In place of torchrun's `elastic_launch`."""

    def start(*words: str) -> NoReturn:
        own = [word.replace("${local_rank}", "0") for word in words]
        if entrypoint == sys.executable:
            own = own[1:] if own[:1] == ["-u"] else own
        elif isinstance(entrypoint, str):
            raise Unlaunched(f"its launcher starts no Python: {entrypoint}")
        raise _Start(own, config.nproc_per_node * config.min_nodes)

    return start


def _start_one(words: list[str], env: dict[str, str], **_: Any) -> NoReturn:
    """In place of `subprocess.Popen` for a single process."""
    if words[0] != sys.executable:
        raise Unlaunched(f"its launcher starts no Python: {words[0]}")
    os.environ.update(env)
    raise _Start(words[1:], 0)


def _change_environment(before: dict[str, str], env: dict[str, str]) -> None:
    os.environ.update((name, env[name]) for name in env if before.get(name) != env[name])
    show_to_python(GPUS, env.get(GPUS, ""))
