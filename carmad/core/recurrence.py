"""Which jobs are runs of the same one: the same user's, from the same directory, in the same
Python environment, with the same command but for what changes neither memory nor speed."""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

from carmad.core.template import template
from carmad.core.types import JobSpec

PYTHON = ("VIRTUAL_ENV", "CONDA_PREFIX")
LETTERS = 12


def group(spec: JobSpec) -> str:
    """A short name for all runs of the job, good across restarts."""
    env = dict(spec.env)
    python = tuple(env.get(name, "") for name in PYTHON)
    return _group(spec.user, spec.cwd, spec.conda_env, python, spec.argv, spec.batch_size)


@lru_cache(maxsize=4096)
def _group(
    user: str,
    cwd: str,
    conda_env: str | None,
    python: tuple[str, ...],
    argv: tuple[str, ...],
    batch_size: int | None,
) -> str:
    command, batch = template(argv), () if batch_size is None else (batch_size,)
    what = (user, cwd, conda_env, python, command.words, tuple(sorted(command.options)), *batch)
    return blake2b(repr(what).encode(), digest_size=LETTERS // 2).hexdigest()
