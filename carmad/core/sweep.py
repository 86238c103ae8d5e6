"""The parameters of a sweep: an array whose tasks have the same command and different values in it.

A task stores its own values only; its command is derived from them and the array's. Values take the
place of `{NAME}` in the command.
"""

from __future__ import annotations

import re
from functools import lru_cache

from carmad.core.template import template
from carmad.core.types import JobSpec

Params = tuple[tuple[str, str], ...]

_PLACE = re.compile(r"\{([A-Za-z_][\w.-]*)\}")


def params(spec: JobSpec) -> Params:
    return spec.array.params if spec.array else ()


def filled(argv: tuple[str, ...], params: Params) -> tuple[str, ...]:
    """The command with these values. A placeholder in a value is left as it is."""
    if not params:
        return argv
    values = dict(params)
    return tuple(_PLACE.sub(lambda m: values.get(m[1], m[0]), word) for word in argv)


def command(spec: JobSpec) -> tuple[str, ...]:
    """The words that the task runs."""
    return filled(spec.argv, params(spec))


def telling(spec: JobSpec) -> Params:
    """The parameters that may affect memory or speed, as `core.template` says: not learning rates,
    seeds and the like."""
    return tuple(one for one in params(spec) if tells(*one))


@lru_cache(maxsize=1024)
def tells(name: str, value: str) -> bool:
    """Whether the parameter may affect memory or speed."""
    return bool(template(("", f"--{name}={value}")).options)


def variables(params: Params) -> dict[str, str]:
    """The environment variables that tell a task its values: CARMA_PARAM_LR."""
    return {"CARMA_PARAM_" + re.sub(r"\W", "_", name.upper()): value for name, value in params}
