"""Programs that start another, such as `nohup` and `timeout`. Standard library only."""
# Few imports, as in `find`:
# ruff: noqa: PTH119

from __future__ import annotations

import os
import re
from collections.abc import Sequence

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
    "srun": (0, "nNpGctJ"),
}


def outside(words: Sequence[str]) -> str:
    """What the programs in front of a command would change for it."""
    front = words[: len(words) - len(unwrapped(words))]
    return "`srun` was left out" if "srun" in map(os.path.basename, front) else ""


def unwrapped(words: Sequence[str]) -> list[str]:
    """A command without `nohup`, `nice -n 10`, `timeout 3h` and their like in front."""
    rest = list(words)
    while rest and (base := os.path.basename(rest[0])) in PREFIXES and base != "env":
        own, valued = PREFIXES[base]
        rest.pop(0)
        while rest and rest[0].startswith("-"):
            option = rest.pop(0)
            if re.fullmatch(rf"-[{valued or '-'}]", option) and valued and rest:
                rest.pop(0)
        del rest[:own]
    return rest
