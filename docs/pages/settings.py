"""settings.md: every setting, from the dataclasses of CARMA and its plugins, and their comments."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from carmad import config, registry
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


def settings() -> list[Setting]:
    """All settings, in the order of `carmad/config.py`, then those that plugins declare."""
    found: list[Setting] = []
    sections = dict(_sections())
    for section, kind in {"": config.Settings, **sections}.items():
        defaults = kind()
        comments = comments_of(sys.modules[kind.__module__])
        for field in fields(kind):
            default = getattr(defaults, field.name)
            if not section and field.name in {*sections, "policies", "plugins", "origins"}:
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
    yield from config.sections()
    for key, declared in registry.settings_of_plugins().items():
        yield ".".join(key), declared


def page() -> str:
    every = settings()
    at_once = ", ".join(f"`{'.'.join(filter(None, each))}`" for each in config.at_once())
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
        "",
        "## What a policy brings",
        "",
        "Some policies are a part of a paper's system. Who names one of them in `policy` sets the"
        " following, too, but for what is set otherwise, in the file or by a variable, even to its"
        " default. `carma config show` says where each value comes from.",
        "",
        "| `policy` | sets |",
        "|---|---|",
    ]
    systems = registry.systems()
    for policy in sorted(registry.own_names("systems")):
        brought = systems[policy].settings.items()
        if sets := ", ".join(f"`{name} = {json.dumps(value)}`" for name, value in brought):
            out.append(f"| `{policy}` | {sets} |")
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
        " declares itself are in the same table.",
        "",
        "```toml",
        'policy = "rr"',
        "",
        "[policies.rr]",
        "min_free_mib = 5120  # as in the paper's experiments",
        "```",
    ]
    return "\n".join(out)


# Settings that name a plugin, and the kind of plugin.
PLUGINS = {
    "policy": "policies",
    "estimator": "estimators",
    "predictor": "predictors",
    "recovery.name": "recoveries",
}


def meaning(setting: Setting) -> str:
    if kind := PLUGINS.get(setting.key):
        names = ", ".join(f"`{name}`" for name in registry.own_names(kind))
        return f"{setting.comment}: {names}, or a plugin's"
    return setting.comment


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
