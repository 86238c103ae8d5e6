"""Writes docs/reference/*.md from the code: `python docs/generate.py`, and `--check` to compare.

Text that the code does not have (what would help against a reason) stands here; `tests/test_docs`
sees to it that nothing is left out.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from typer.models import ArgumentInfo

from carmad import config, registry
from carmad.api.phrases import phrase, short, wordings
from carmad.api.render import CODES
from carmad.core import attempt, types
from carmad.core.decision import Reason
from carmad.core.states import TRANSITIONS
from carmad.core.types import ENDED, HOLDING, Cause, JobState, Mode
from carmad.daemon.reload import AT_ONCE
from carmad.http.server import create_app
from cli.app import JOBS, PASSED_ON, SERVER, VERBS, WATCH
from cli.app import MORE as MORE_VERBS
from cli.commands import diagnosis, estimate, gpumemnet, server
from cli.commands.submit_options import build_parser

REFERENCE = Path(__file__).parent / "reference"
SECTIONS = (JOBS, WATCH, SERVER, MORE_VERBS)
NOTICE = "<!-- Written by docs/generate.py from the code. Do not edit. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated page, by its file name."""
    os.environ["TZ"] = "UTC"  # one of the examples has a time of day
    time.tzset()
    made = {
        "settings.md": settings_page,
        "commands.md": commands_page,
        "http-api.md": api_page,
        "reasons.md": reasons_page,
        "states.md": states_page,
    }
    return {name: NOTICE + page().rstrip() + "\n" for name, page in made.items()}


# -- settings


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


# For those that need more words than the code has room for.
MORE = {
    "policy": "a placement policy: `exclusive`, `rr`, `magm`, `lug`, `first_fit`, `best_fit`,"
    " `lucid`, `castor`, `asrpt`, `cuckoo`, or a plugin's",
    "predictor": "what says how long a job will run: `declared`, `history`, `additive`, `forest`,"
    " `mean`, `median`, or a plugin's",
    "estimator": "a memory estimator: `auto` (the best that has an answer), `declared`, `history`,"
    " `trace`, `gpumemnet`, `horus`, `faketensor`, or a plugin's",
    "recovery.name": "what follows an out-of-memory crash: `exclusive`, `adaptive`, or a plugin's",
    "monitor.period_s": "how often the GPUs are read",
    "risk.mean": "weight of the mean; the four weights add up to 1",
    "risk.median": "weight of the median",
    "risk.p95": "weight of the 95th percentile",
    "risk.ema": "weight of the exponential moving average",
    "risk.sm_active": "a GPU is risky from this SMACT risk on, together with one of the next two",
    "risk.sm_occupancy": "SMOCC risk from which a GPU counts as full",
    "risk.dram_active": "DRAMA risk from which a GPU counts as bound by its memory",
    "preconditions.min_free_mib": "memory that must be free, whatever a job asks for; 0: none",
    "collocation.max_jobs_per_gpu": "no GPU gets more jobs than this",
    "limits.gpus_per_user": "GPU places that the jobs of one user may hold at once",
    "limits.queued_per_user": "jobs that one user may have waiting",
    "limits.queued_mib_per_user": "MiB that the commands and environments of one user's"
    " waiting jobs may come to; equal environments count once",
    "retention.ended_days": "how long ended jobs are remembered",
    "retention.samples_hours": "how long the GPUs' half-minute averages are kept",
    "access.admin_group": "its members, and root, may touch every job and drain GPUs",
}


def settings() -> list[Setting]:
    """All of them, in the order of `carmad/config.py`, with its comments; then the plugins'."""
    found: list[Setting] = []
    for section, kind in [("", config.Settings), *_sections()]:
        defaults = kind()
        comments = _comments(sys.modules[kind.__module__])
        for field in fields(kind):
            default = getattr(defaults, field.name)
            if is_dataclass(default) or field.name in ("policies", "plugins"):
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
        if is_dataclass(hints[field.name]):
            yield field.name, hints[field.name]
    for key, declared in registry.declared_settings().items():
        yield ".".join(key), declared


def _comments(module: Any) -> dict[tuple[str, str], str]:
    """The `# …` behind each field, by class and field."""
    source = inspect.getsource(module)
    lines = source.splitlines()
    found = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            match statement:
                case (
                    ast.AnnAssign(target=ast.Name(id=name))
                    | ast.Assign(targets=[ast.Name(id=name)])
                ):
                    line = lines[statement.lineno - 1][statement.end_col_offset or 0 :]
                    found[node.name, name] = line.partition("#")[2].strip()
    return found


def settings_page() -> str:
    every = settings()
    at_once = ", ".join(f"`{group}.{name}`" for group, names in AT_ONCE.items() for name in names)
    out = [
        "# Settings",
        "",
        "One TOML file: `/etc/carma/carma.toml` for a daemon that runs as root,"
        " `~/.config/carma/carma.toml` for one's own; `--config FILE` or `CARMA_CONFIG` name"
        " another. No file is needed: every setting has a default. A name that CARMA does not know"
        " is an error, and so is a value of the wrong type.",
        "",
        "An environment variable of the daemon's wins over the file. `carma config show` prints"
        " what is in effect, `carma config check FILE` checks a file. After a change, restart the"
        " daemon: running jobs go on. A reload (`systemctl reload carmad`, SIGHUP) is enough for"
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
                meaning = "; ".join(filter(None, (MORE.get(setting.key), setting.comment)))
                out.append(
                    f"| `{setting.name}` | {_default(setting)} | {_cell(meaning)}"
                    f" | `{setting.variable}` |"
                )
    names = ", ".join(f"`{field.name}`" for field in fields(config.Preconditions))
    out += [
        "",
        "## `[policies.NAME]`",
        "",
        f"Preconditions ({names}) of the policy NAME, instead of those in `[preconditions]`. What"
        " is left out here has the built-in default, not the value from `[preconditions]`."
        " Variable: `CARMA_POLICIES__NAME__MIN_FREE_MIB`, and so on. Settings that the policy"
        " declares itself stand in the same table; before 0.2 those of lucid, asrpt and cuckoo"
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


def _default(setting: Setting) -> str:
    match setting.default:
        case None:
            return "not set"
        case bool():
            return f"`{str(setting.default).lower()}`"
        case str():
            return f'`"{setting.default}"`'
        case _:
            return f"`{setting.default}`"


# -- commands


@dataclass(frozen=True, slots=True)
class Command:
    name: str
    aliases: tuple[str, ...]
    section: str
    function: Callable[..., Any]


def commands() -> list[Command]:
    """Every command of `carma`, those of its groups too."""
    found = [Command(verb, aliases, section, does) for verb, aliases, does, section in VERBS]
    for group, app in (
        ("daemon", server.daemon),
        ("config", diagnosis.config),
        ("gpumemnet", gpumemnet.gpumemnet),
    ):
        for one in app.registered_commands:
            assert one.callback is not None
            found.append(
                Command(f"{group} {one.name or one.callback.__name__}", (), SERVER, one.callback)
            )
    return sorted(found, key=lambda one: SECTIONS.index(one.section))


def commands_page() -> str:
    out = [
        "# Commands",
        "",
        "`carma` asks the daemon at `CARMA_SOCKET`, else at your own daemon's socket if you run"
        " one, else at `/run/carma/carmad.sock`. `--color auto|always|never` stands before the"
        " verb; `NO_COLOR` is honoured. Data goes to standard output, notes and errors to standard"
        " error. Output that is not a terminal's is never cut to its width.",
        "",
        "| Exit code | Meaning |",
        "|---|---|",
        "| 0 | done |",
        "| 1 | the daemon refused, a check failed, or another error |",
        "| 2 | wrong command line |",
        "| 3 | no daemon is running |",
        "| 4 | not permitted for this user |",
        "| 130 | interrupted with Ctrl-C |",
        "",
        "`carma wait` and `carma submit --wait` answer with the job's exit code instead, 128+N if"
        " signal N ended it, and 1 if it never ran or its code is not known. With `--json`, errors"
        " are JSON too: `error`, `hint`, `code`.",
    ]
    last = ""
    for one in commands():
        if one.section != last:
            last = one.section
            out += ["", f"## {last}"]
        out += ["", f"### `carma {one.name}`", ""]
        if one.aliases:
            out += ["Also: " + ", ".join(f"`carma {alias}`" for alias in one.aliases) + ".", ""]
        out += [_one_line(one.function.__doc__), ""]
        if one.name == "submit":
            out += _submit()
        elif one.name == "estimate":
            out += _estimate()
        elif one.name in PASSED_ON:
            out += [PASSED_ON_WORDS[one.name]]
        else:
            out += _parameters(one.function)
    return "\n".join(out)


PASSED_ON_WORDS = {
    "demo": "`--jobs N`: how many (default 20).",
}
VALUES = {int: "N", float: "N", Path: "PATH", str: "TEXT"}


def _parameters(function: Callable[..., Any]) -> list[str]:
    """From the annotations that typer itself reads."""
    rows = []
    defaults = {name: p.default for name, p in inspect.signature(function).parameters.items()}
    for name, hint in get_type_hints(function, include_extras=True).items():
        info = next((m for m in getattr(hint, "__metadata__", ()) if hasattr(m, "help")), None)
        if info is None:
            continue
        kind, default, said = hint.__origin__, defaults[name], _one_line(info.help)
        if isinstance(info, ArgumentInfo):
            words = f"`{info.metavar or name.upper()}`"
            if isinstance(kind, type) and issubclass(kind, Enum):
                words += " (" + ", ".join(f"`{choice.value}`" for choice in kind) + ")"
        else:
            # In an annotation, typer takes the first name for the default.
            first = (info.default,) if isinstance(info.default, str) else ()
            decls = (*first, *(info.param_decls or ())) or (f"--{name.replace('_', '-')}",)
            value = "" if kind is bool else f" {info.metavar or _value_of(kind)}"
            words = ", ".join(f"`{option}{value}`" for option in decls)
        if isinstance(default, int | float | str | Path) and not isinstance(default, bool):
            said += f" Default: `{default}`."
        rows.append(f"| {words} | {_cell(said)} |")
    return ["| Word | Meaning |", "|---|---|", *rows] if rows else []


def _value_of(kind: Any) -> str:
    return next((word for known, word in VALUES.items() if known in (kind, *get_args(kind))), "X")


def _submit() -> list[str]:
    parser = build_parser()
    out = [*_usage(parser), ""]
    for group in parser._action_groups:
        if group._group_actions:
            title = f"**{str(group.title).capitalize()}**"
            out += [title, "", *_options(group._group_actions), ""]
    return [*out, _one_line(parser.epilog or "")]


def _estimate() -> list[str]:
    parser = estimate.build_parser()
    own = parser._action_groups[-1]._group_actions
    also = "It takes what [`carma submit`](#carma-submit) takes, and also:"
    return [*_usage(parser), "", also, "", *_options(own), "", _one_line(parser.epilog or "")]


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    return ["```", *(line.strip() for line in str(parser.usage).splitlines()), "```"]


def _options(actions: Iterable[argparse.Action]) -> list[str]:
    out = ["| Option | Meaning |", "|---|---|"]
    for action in actions:
        value = f" {action.metavar}" if action.metavar and action.nargs != 0 else ""
        words = ", ".join(f"`{option}{value}`" for option in action.option_strings)
        out.append(f"| {words} | {_cell((action.help or '').replace('%%', '%'))} |")
    return out


# -- the HTTP API


def schema() -> dict[str, Any]:
    service = SimpleNamespace(settings=config.Settings())
    made: dict[str, Any] = create_app(service).openapi()  # type: ignore[arg-type]
    return made


def api_page() -> str:
    openapi = schema()
    known = openapi["components"]["schemas"]
    out = [
        "# HTTP API",
        "",
        "JSON over HTTP on a unix socket, `/run/carma/carmad.sock` by default. Who asks is told by"
        " the kernel (`SO_PEERCRED`), never by the message. There is no TCP listener."
        " The whole schema is at `/v1/openapi.json`:",
        "",
        "```sh",
        "curl --unix-socket /run/carma/carmad.sock http://carma/v1/status",
        "```",
        "",
        "Every answer has `schema`, which rises when a field changes its meaning or goes away. New"
        " fields may come at any time. Times are ISO 8601 in UTC, memory is in MiB, durations are"
        " in seconds. A request may have 8 MiB, and must arrive within 30 s; one user may hold 256"
        " connections.",
        "",
        "Errors are `{error, hint, code}`:",
        "",
        "| Status | Meaning |",
        "|---|---|",
    ]
    responses = openapi["paths"]["/v1/jobs"]["get"]["responses"]
    for status, response in responses.items():
        if status != "200":
            out.append(f"| {status} | {response['description']} |")
    out += ["", "## Paths"]
    for path, methods in openapi["paths"].items():
        for method, what in methods.items():
            out += ["", f"### `{method.upper()} {path}`", ""]
            said = _one_line(what.get("description", ""))
            if said:
                out += [said, ""]
            out += _query(what.get("parameters", []))
            if "requestBody" in what:
                out += [f"Takes {_type(_body(what['requestBody']))}.", ""]
            good = [(s, r) for s, r in what["responses"].items() if s.startswith("2")]
            for status, response in good:
                out.append(f"Answers {status}: {_type(_body(response))}.")
    out += ["", "## Shapes"]
    for name, shape in sorted(known.items()):
        out += ["", f"### {name}", ""]
        if shape.get("description"):
            out += [_one_line(shape["description"]), ""]
        out += ["| Field | Type | Always there |", "|---|---|---|"]
        required = set(shape.get("required", ()))
        for field, kind in shape.get("properties", {}).items():
            default = "no" if "default" not in kind else f"no: `{json.dumps(kind['default'])}`"
            here = "yes" if field in required else default
            out.append(f"| `{field}` | {_type(kind)} | {here} |")
    return "\n".join(out)


def _query(parameters: Iterable[dict[str, Any]]) -> list[str]:
    rows = [
        f"| `{one['name']}` | in the {one['in']} | {_type(one['schema'])}"
        f" | {_cell(one['schema'].get('description', ''))} |"
        for one in parameters
    ]
    return ["| Name | Where | Type | Meaning |", "|---|---|---|---|", *rows, ""] if rows else []


def _body(part: dict[str, Any]) -> dict[str, Any]:
    content = part.get("content", {}).get("application/json", {})
    shape: dict[str, Any] = content.get("schema", {})
    return shape


def _type(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_type(one) for one in kind["anyOf"])
    if "enum" in kind:
        return " or ".join(f"`{json.dumps(one)}`" for one in kind["enum"])
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    if kind.get("format") == "date-time":
        return "time"
    return str(kind.get("type", "anything"))


# -- reasons

# An example of each, and what would help.
HELP: dict[str, tuple[Reason, str]] = {
    "fault": (
        Reason("fault", detail="the GPU must be reset: nvidia-smi --gpu-reset"),
        "An administrator looks at `dmesg`; see the administrators' guide.",
    ),
    "gpus_unread": (
        Reason("gpus_unread", detail="the NVIDIA driver is not loaded"),
        "It starts by itself when the driver is there; `carma doctor` and `nvidia-smi` tell more.",
    ),
    "drained": (Reason("drained", detail="fan swap"), "`carma resume GPU` (administrators)."),
    "stale": (
        Reason("stale", 5, 12, "s"),
        "`carma doctor`: the driver may hang.",
    ),
    "mig_single": (
        Reason("mig_single", 1, 2, "GPUs"),
        "Ask for one GPU: a process sees one MIG instance.",
    ),
    "busy": (
        Reason("busy", 0, 1, "jobs", "job 7"),
        "Wait; or leave out `--exclusive`, if it was asked for.",
    ),
    "external": (
        Reason("external", 500, 21_504, "MiB"),
        "Wait until the processes there end, or end them; `carma status` names them.",
    ),
    "exclusive": (Reason("exclusive", detail="job 7"), "Wait until that job ends."),
    "profiling": (
        Reason("profiling", 1_793_000_000, detail="job 7"),
        "Wait until it is known; see `profiling.run_s`.",
    ),
    "first_kernel": (
        Reason("first_kernel", 600, 12, "s", "job 7"),
        "Wait until that job computes, or `monitor.first_kernel_timeout_s` is over.",
    ),
    "settling": (
        Reason("settling", 30, 8, "s", "job 7"),
        "Wait for the rest of `monitor.window_s`.",
    ),
    "jobs_per_gpu": (
        Reason("jobs_per_gpu", 8, 8, "jobs"),
        "Wait; or raise `collocation.max_jobs_per_gpu`.",
    ),
    "preempted": (
        Reason("preempted", detail="job 9 goes first"),
        "Nothing: it goes on when it is its turn. `--no-requeue` keeps a job from it.",
    ),
    "making_room": (
        Reason("making_room", 2, 1, "GPUs", "job 7"),
        "Wait until those that were preempted for it are gone.",
    ),
    "not_preemptible": (
        Reason("not_preemptible"),
        "See `limits.preemption`; a job of `--no-requeue` never may be.",
    ),
    "mps_user": (
        Reason("mps_user", detail="ada"),
        "Wait until their jobs end there; or see `collocation.mps_multiuser`.",
    ),
    "avoid": (
        Reason("avoid", detail="ran out of memory there"),
        "Another GPU must do (the adaptive recovery).",
    ),
    "memory": (
        Reason("memory", 83_968, 30_720, "MiB"),
        "Ask for less with `--gpu-mem`, or wait.",
    ),
    "min_free": (
        Reason("min_free", 2048, 900, "MiB"),
        "Wait; `preconditions.min_free_mib` says how much must be free.",
    ),
    "risk": (
        Reason("risk", 0.80, 0.91, "SMACT", "DRAMA 0.44 (limit 0.40)"),
        "Wait until the GPU is less busy. `carma gpus` shows the risk.",
    ),
    "unprofiled": (
        Reason("unprofiled", detail="job 7"),
        "Wait until it is profiled, or has ended.",
    ),
    "unpredicted": (
        Reason("unpredicted", detail="this job"),
        "Say it with `--expect`, or choose another `predictor`.",
    ),
    "sharing_score": (
        Reason("sharing_score", 2, 3, detail="job 7 is Medium, this one Jumbo"),
        "Wait; `policies.lucid.sharing_capacity` is the limit.",
    ),
    "gpu_demand": (
        Reason("gpu_demand", 1, 2, "GPUs", "job 7"),
        "Wait: under Lucid only jobs of equal demand share.",
    ),
    "distributed": (
        Reason("distributed", detail="job 7"),
        "Wait: under Lucid jobs that span servers do not share.",
    ),
    "unstable": (
        Reason("unstable", 0.05, 0.12, "", "job 7"),
        "Wait: Lucid shares only with jobs that use their GPU evenly.",
    ),
    "outlasts": (
        Reason("outlasts", 7200, 36_000, "GPU-s", "job 7"),
        "Wait: Lucid does not burden a job with a much longer one.",
    ),
    "kept_for_profiling": (
        Reason("kept_for_profiling"),
        "Nothing: `profiling.gpus` says how many are kept.",
    ),
    "no_benefit": (
        Reason("no_benefit", 5400, 7200, "s", "job 7"),
        "Nothing: Castor has worked out that waiting is better.",
    ),
    "profiling_gpus": (
        Reason("profiling_gpus", 2, 1, "GPUs"),
        "Wait; `profiling.gpus` says how many there are.",
    ),
    "sharing_off": (
        Reason("sharing_off", 4, 1, "GPUs"),
        "Wait; `policies.lucid.off_below` is the limit.",
    ),
    "few_idle": (Reason("few_idle", 4, 1, "GPUs"), "Wait until jobs end."),
    "line_held": (
        Reason("line_held", detail="job 7"),
        "Wait: under A-SRPT nobody passes one that waits.",
    ),
    "better_gpus": (
        Reason("better_gpus", 1_795_384_800, 2.4, detail="times as slow"),
        "Wait; `policies.asrpt.patience` says how long.",
    ),
    "slices_apart": (
        Reason("slices_apart", 4, 2, "GPUs"),
        "Wait until jobs end, or ask for fewer tensor slices.",
    ),
    "reserved": (
        Reason("reserved", 600, 0, "s"),
        "Wait; `policies.asrpt.reserve = false` ends that.",
    ),
    "partner": (Reason("partner", 1, 1.4, detail="job 7"), "Wait until they have settled."),
    "no_partner": (Reason("no_partner"), "Wait until jobs end."),
    "planned_start": (
        Reason("planned_start", 1, 5400, "s", "job 7"),
        "Wait: Cuckoo plans anew with every change.",
    ),
    "deadline": (
        Reason("deadline", 3600, 5400, "s"),
        "A later `--deadline`, fewer GPUs, or a word with an administrator.",
    ),
    "packed": (
        Reason("packed", 1, 1.4, detail="job 7"),
        "Nothing: Cuckoo put them together for that.",
    ),
    "close_deadlines": (
        Reason("close_deadlines", 1, 0.8, detail="job 7"),
        "Nothing: `policies.cuckoo.weight` says what that counts.",
    ),
    "planned_end": (Reason("planned_end", 7200, 5400, "s"), "Nothing: it is in time."),
    "mapped": (
        Reason("mapped", 0.3, 0.4, "s", "communication-heavy"),
        "Nothing: A-SRPT put it there for that.",
    ),
    "no_room": (
        Reason("no_room", 2, 1, "GPUs"),
        "Wait until jobs end.",
    ),
    "affine": (
        Reason("affine", 2, 1, detail="job 7 is Tiny, this one Medium"),
        "Nothing: Lucid put it there for that.",
    ),
    "sharing_benefit": (
        Reason("sharing_benefit", 7200, 5400, "s", "job 7"),
        "Nothing: Castor put it there for that.",
    ),
    "split_batch": (
        Reason("split_batch", 64, 16, detail="4 parts"),
        "Nothing: `--batch-size` allowed it; gradients stay the same.",
    ),
    "profiled_there": (
        Reason("profiled_there", 200),
        "Nothing: it is known after that. See `profiling.run_s`.",
    ),
    "predicted": (
        Reason("predicted", 0, 5400, "s", "history"),
        "`--expect` says it better.",
    ),
    "held": (Reason("held"), "`carma release JOB`."),
    "begin": (Reason("begin", 1_795_384_800, 0, "s"), "Wait: `--begin` asked for it."),
    "dependency": (Reason("dependency", detail="job 7"), "Wait for that job to end."),
    "array_limit": (
        Reason("array_limit", 2, 2, "tasks"),
        "Wait: the `%N` of `--array` asked for it.",
    ),
    "quota": (
        Reason("quota", 2, 2, "GPUs", "ada"),
        "Wait until one of your jobs ends; `limits.gpus_per_user` is the limit.",
    ),
    "policy_failed": (
        Reason("policy_failed", detail="it raised KeyError('x')"),
        "An administrator repairs the policy, chooses another, or sets `policy_fallback`.",
    ),
    "policy_fallback": (
        Reason("policy_fallback", detail="lucid"),
        "Nothing: `policy_fallback` decides until the policy answers again.",
    ),
}
OF_THE_JOB = (
    *("held", "begin", "dependency", "array_limit", "quota"),
    *("preempted", "making_room", "not_preemptible", "policy_failed"),
    *("profiling_gpus", "sharing_off", "no_room", "few_idle", "line_held", "better_gpus"),
    *("slices_apart", "reserved", "partner", "no_partner", "planned_start", "deadline"),
)
POLICYS = (
    *("memory", "min_free", "risk", "unprofiled", "sharing_score", "gpu_demand", "distributed"),
    *("unpredicted", "unstable", "outlasts", "kept_for_profiling", "no_benefit"),
)
GROUNDS = (
    *("affine", "sharing_benefit", "split_batch", "profiled_there", "predicted"),
    *("packed", "close_deadlines", "planned_end", "mapped", "policy_fallback"),
)


def reasons_page() -> str:
    out = [
        "# Reasons",
        "",
        "Why a job waits. The rule that says no makes the reason, with the numbers that it used;"
        " `carma why JOB` prints it as a sentence, the last column of `carma queue` as a word, and"
        " `--json` as `code`, `need`, `have`, `unit` and `detail`. Codes are stable. A plugin may"
        " use codes of its own.",
        "",
        "Two words of that column are no reasons: `(Priority)`, a job before this one holds the"
        " line, and `(Resources)`, too few GPUs said yes. `(Estimating)` means that the job's"
        " memory need is not known yet.",
    ]
    kinds: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
        (
            "Of a GPU: CARMA's hard rules",
            "No policy can override these.",
            lambda code: code not in OF_THE_JOB + POLICYS + GROUNDS,
        ),
        (
            "Of a GPU: preconditions of the policies",
            "The built-in sharing policies apply the first three (all but `exclusive`), Lucid and"
            " Castor also the others.",
            lambda code: code in POLICYS,
        ),
        ("Of the job", "No GPU is to blame.", lambda code: code in OF_THE_JOB),
        (
            "Why a job was placed as it was",
            "What spoke for it (`grounds` in `--json`).",
            lambda code: code in GROUNDS,
        ),
    )
    for title, said, belongs in kinds:
        out += ["", f"## {title}", "", said, ""]
        out += ["| Code | In a table | In words, for example | What helps |", "|---|---|---|---|"]
        for code in filter(belongs, wordings()):
            example, help = HELP[code]
            where = "" if code in OF_THE_JOB + GROUNDS else "GPU1"
            out.append(
                f"| `{code}` | `({_cell(short(example, where))})` | {_cell(phrase(example))}"
                f" | {help} |"
            )
    return "\n".join(out)


# -- states


def states_page() -> str:
    comments = _comments(types) | _comments(attempt)
    out = [
        "# States",
        "",
        "## Of a job",
        "",
        "| State | Code | Meaning | Holds GPUs | Can become |",
        "|---|---|---|---|---|",
    ]
    words = {
        JobState.SUCCEEDED: "its exit code was 0",
        JobState.FAILED: "another exit code, a signal, the host's memory, or it never started",
        JobState.CANCELLED: "by its owner or an administrator, or for a dependency",
        JobState.TIMED_OUT: "its time limit was reached",
        JobState.OUT_OF_MEMORY: "out of GPU memory, and no further attempt is made",
    }
    for state in JobState:
        said = comments.get(("JobState", state.name)) or words[state]
        holds = "yes" if state in HOLDING else ""
        after = ", ".join(f"`{one}`" for one in JobState if one in TRANSITIONS[state])
        if state in ENDED:
            after += " (`carma requeue`)"
        out.append(f"| `{state}` | `{CODES[state]}` | {_cell(said)} | {holds} | {after} |")
    out += [
        "",
        "Two more codes are kinds of waiting: `H`, the job is held, and `RQ`, it waits for another"
        " attempt (the recovery queue).",
        "",
        "## Cause of an attempt's end",
        "",
        "| Cause | Meaning | The job becomes |",
        "|---|---|---|",
    ]
    ends = {
        Cause.SUCCESS: ("exit code 0", "`succeeded`"),
        Cause.FAILURE: ("", "`failed`"),
        Cause.GPU_OOM: ("the log's end names it", "`queued` again, or `out_of_memory`"),
        Cause.HOST_OOM: ("the kernel's OOM killer, or a log line that names it", "`failed`"),
        Cause.CANCELLED: ("somebody asked for it", "`cancelled`"),
        Cause.TIME_LIMIT: ("`--time` is over", "`timed_out`"),
        Cause.LAUNCH_FAILED: ("", "`failed`"),
        Cause.LOST: ("", "`queued` again, once, or `failed`"),
        Cause.DEPENDENCY: ("", "`cancelled`"),
        Cause.PREEMPTED: ("", "`queued` again, with what it ran for counted"),
        Cause.PROFILED: ("", "`queued` again, from its beginning"),
    }
    for cause in Cause:
        said = comments.get(("Cause", cause.name)) or ends[cause][0]
        out.append(f"| `{cause}` | {_cell(said)} | {ends[cause][1]} |")
    out += ["", "## Mode", "", "| Mode | Meaning |", "|---|---|"]
    for mode in Mode:
        out.append(f"| `{mode}` | {_cell(comments[('Mode', mode.name)])} |")
    out += [
        "",
        "## Of a GPU",
        "",
        "| State | Meaning |",
        "|---|---|",
        "| `ok` | it takes jobs, if the policy agrees |",
        "| `settling` | a job on it is too fresh to judge it by |",
        "| `stale` | its last reading is older than `monitor.stale_s` |",
        "| `drained` | an administrator, or carmad after an Xid, keeps jobs off it |",
        "| `faulty` | the driver reports a fault |",
    ]
    return "\n".join(out)


def _one_line(text: str | None) -> str:
    return re.sub(r"\s+", " ", text or "").strip()


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")


def reasons() -> set[str]:
    return set(wordings())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; say what differs")
    check = parser.parse_args().check
    stale = []
    for name, text in pages().items():
        path = REFERENCE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(f"docs/reference/{name} {'is not up to date' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
