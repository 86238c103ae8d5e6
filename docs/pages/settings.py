"""settings.md: every setting, from the dataclasses of CARMA and its plugins, and their comments."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, get_args, get_type_hints

from carmad import config, registry
from carmad.daemon.reload import AT_ONCE
from docs.pages.text import cell, comments_of


@dataclass(frozen=True, slots=True)
class Setting:
    section: str  # "" at the top level
    name: str
    default: Any
    type: str
    comment: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name

    @property
    def variable(self) -> str:
        return "CARMA_" + self.key.upper().replace(".", "__")


def _plugins(kind: str) -> str:
    names = (f"`{name}`" for name in registry.own_names(kind))
    return f"{', '.join(names)}, or a plugin's"


# For settings that need more explanation than the code has room for.
MORE = {
    "policy": f"a placement policy: {_plugins('policies')}",
    "predictor": f"predicts how long a job will run: {_plugins('predictors')}",
    "estimator": f"a memory estimator: {_plugins('estimators')}; `auto` takes the best that has an"
    " answer",
    "recovery.name": f"what follows an out-of-memory crash: {_plugins('recoveries')}",
    "monitor.period_s": "how often the GPUs are read",
    "risk.mean": "weight of the mean; the four weights must add up to 1",
    "risk.median": "weight of the median",
    "risk.p95": "weight of the 95th percentile",
    "risk.ema": "weight of the exponential moving average",
    "risk.sm_active": "SMACT risk from which a GPU is risky, together with one of the next two",
    "risk.sm_occupancy": "SMOCC risk from which a GPU counts as full",
    "risk.dram_active": "DRAMA risk from which a GPU counts as memory-bound",
    "preconditions.min_free_mib": "memory that must be free, whatever a job needs; 0: none",
    "collocation.max_jobs_per_gpu": "no GPU gets more jobs than this",
    "host.cpus": "CPUs that jobs may have together; by default all that the daemon may use."
    " Only jobs that ask for CPUs are counted",
    "host.memory_mib": "MiB of the host's memory that jobs may have together; by default all but"
    " a twentieth, which is for the system. Only jobs that ask for memory are counted",
    "host.cgroup": "a delegated cgroup (v2) in which the limits of jobs are set on a machine"
    " without systemd, such as `/sys/fs/cgroup/carma`; empty: they are counted, not enforced",
    "limits.gpus_per_user": "GPUs that one user's jobs may hold at once",
    "limits.queued_per_user": "jobs that one user may have in the queue",
    "limits.queued_mib_per_user": "MiB that the commands and environments of one user's"
    " waiting jobs may take up; identical environments count once",
    "limits.backfill": "how often a waiting job may be overtaken by later ones, whenever they end;"
    " 0: never; not set: by those that [end before it can start](../concepts/placement.md), in"
    " simulations by none",
    "fairness.enabled": "order jobs of equal priority by what their users have used; not set: yes,"
    " but not in simulations",
    "fairness.weights": 'such as `{ada = 2.0, "@vision" = 3.0}`: who has twice the weight may use'
    " twice as much. The users of a group with a weight share it as one",
    "retention.ended_days": "how long ended jobs are kept",
    "access.admin_group": "its members, and root, may manage every job and drain GPUs",
}


def settings() -> list[Setting]:
    """All settings, in the order of `carmad/config.py`, then those that plugins declare."""
    found: list[Setting] = []
    sections = dict(_sections())
    for section, kind in {"": config.Settings, **sections}.items():
        defaults = kind()
        comments = comments_of(sys.modules[kind.__module__])
        for field in fields(kind):
            default = getattr(defaults, field.name)
            if not section and field.name in {*sections, "policies", "plugins"}:
                continue
            found.append(
                Setting(
                    section,
                    field.name,
                    default,
                    str(field.type),
                    comments.get((kind.__name__, field.name), ""),
                )
            )
    return found


def _sections() -> Iterator[tuple[str, type]]:
    hints = get_type_hints(config.Settings)
    for field in fields(config.Settings):
        for kind in (hints[field.name], *get_args(hints[field.name])):
            if is_dataclass(kind) and isinstance(kind, type) and field.name != "policies":
                yield field.name, kind
    for key, declared in registry.declared_settings().items():
        yield ".".join(key), declared


def page() -> str:
    every = settings()
    at_once = ", ".join(f"`{group}.{name}`" for group, names in AT_ONCE.items() for name in names)
    out = [
        "# Settings",
        "",
        "One TOML file: `/etc/carma/carma.toml` for a daemon that runs as root,"
        " `~/.config/carma/carma.toml` for a user's own; `--config FILE` or `CARMA_CONFIG` name"
        " another. The file is optional: every setting has a default. Unknown names and values of"
        " the wrong type are errors.",
        "",
        "Environment variables of the daemon override the file. `carma config show` prints"
        " what is in effect, `carma config check FILE` checks a file. After a change, restart the"
        " daemon: running jobs continue. A reload (`systemctl reload carmad`, SIGHUP) is enough for"
        f" {at_once}.",
        "",
        "Durations are in seconds, memory is in MiB (1024²).",
    ]
    for section in dict.fromkeys(setting.section for setting in every):
        kind = dict(_sections()).get(section)
        title = f"`[{section}]`" if section else "At the top"
        out += ["", f"## {title}", ""]
        if kind is not None and kind.__doc__ and not kind.__doc__.startswith(kind.__name__ + "("):
            out += [inspect.cleandoc(kind.__doc__), ""]
        out += ["| Setting | Default | Meaning | Variable |", "|---|---|---|---|"]
        for setting in every:
            if setting.section == section:
                out.append(
                    f"| `{setting.name}` | {default(setting)} | {cell(meaning(setting))}"
                    f" | `{setting.variable}` |"
                )
    names = ", ".join(f"`{field.name}`" for field in fields(config.Preconditions))
    out += [
        "",
        "## `[policies.NAME]`",
        "",
        f"Preconditions ({names}) of the policy NAME, instead of those in `[preconditions]`. Any"
        " that are left out have the built-in default, not the value from `[preconditions]`."
        " Variable: `CARMA_POLICIES__NAME__MIN_FREE_MIB`, and so on. Settings that the policy"
        " declares itself are in the same table; before 0.2 those of lucid, asrpt and cuckoo"
        " were in `[lucid]`, `[asrpt]` and `[cuckoo]`, which still works.",
        "",
        "```toml",
        'policy = "rr"',
        "",
        "[policies.rr]",
        "min_free_mib = 5120  # as in the paper's experiments",
        "```",
    ]
    return "\n".join(out)


def meaning(setting: Setting) -> str:
    return "; ".join(filter(None, (MORE.get(setting.key), setting.comment)))


def default(setting: Setting) -> str:
    match setting.default:
        case None:
            return "not set"
        case bool():
            return f"`{str(setting.default).lower()}`"
        case str():
            return f'`"{setting.default}"`'
        case _:
            return f"`{setting.default}`"
