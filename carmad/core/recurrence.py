"""Which jobs are runs of the same one: same user, directory, Python environment, number of GPUs and
command, ignoring arguments that affect neither memory nor speed nor duration."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

from carmad.core import sweep
from carmad.core.template import ordinary, template
from carmad.core.types import JobSpec

PYTHON = ("VIRTUAL_ENV", "CONDA_PREFIX")
TELLING = frozenset({*PYTHON, "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"})
LETTERS = 12


def telling(env: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """The environment variables that distinguish jobs with the same command."""
    return tuple((name, value) for name, value in env if name in TELLING)


def group(spec: JobSpec) -> str:
    """A short id shared by all runs of the job, stable across restarts."""
    env, params = dict(spec.env), sweep.telling(spec)
    argv = sweep.filled(spec.argv, params)
    silent = tuple(one for one in params if f"{{{one[0]}}}" not in " ".join(spec.argv))
    python = tuple(env.get(name, "") for name in PYTHON)
    where = (spec.user, spec.cwd, spec.conda_env, *python)
    if spec.container is not None:
        where += (spec.container,)
    grouped = _group if ordinary(argv) else _group.__wrapped__
    return grouped((*where, *map("=".join, silent)), argv, spec.gpus, spec.batch_size)


@lru_cache(maxsize=1)  # for the tasks of an array, which come one after the other
def _group(
    where: tuple[str | None, ...], argv: tuple[str, ...], gpus: int, batch_size: int | None
) -> str:
    command = template(argv)
    how = command.words, sorted(command.options), sorted(command.lengths)
    what = repr((where, how, gpus, batch_size))
    return blake2b(what.encode(), digest_size=LETTERS // 2).hexdigest()
