"""A request as `carma submit` makes it, as sbatch's options and the script that sbatch is given.

Pure. Which option is whose is stated once, in `SBATCH`: Slurm's go to sbatch, all others to the
`carma run` that the script calls on the node. The time limit goes to
both: Slurm enforces it, and policies on the node plan with it.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from carmad.core.jobs.findings import StageTimes
from carmad.core.jobs.layout import Stage
from carmad.core.jobs.recurrence import fill, variables
from carmad.layout_text import OF_STAGE, OF_TIMES, format_fields
from carmad.options import OPTIONS, Option
from carmad.readable import job_name
from cli.client import spans
from cli.problems import Usage

SBATCH = {  # what sbatch calls options; all others are for the `carma run` on the node
    "constraint": "--constraint",
    "cpus": "--cpus-per-task",
    "host_memory_mib": "--mem",
    "time_limit_s": "--time",
    "array": "--array",
    "after": "--dependency",
    "begin_at": "--begin",
    "held": "--hold",
    "nice": "--nice",
    "name": "--job-name",
    "stdout": "--output",
    "stderr": "--error",
    "requeue": "--requeue",
    "notify": "--mail-type",
    "mail_user": "--mail-user",
    "comment": "--comment",
}
BOTH = ("time_limit_s",)
COUNTED = ("gpus", "memory_mib")  # what the gres is made of, and `carma run` is always told
MAILS = {"start": "BEGIN", "end": "END", "fail": "FAIL", "oom": "FAIL", "limit80": "TIME_LIMIT_80"}
ONE_NODE = ("-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node")

ABSENT = (
    "{ echo \"carma: $SLURMD_NODENAME does not have the job's directory:"
    ' is it on a file system that the nodes share?" >&2; exit 1; }'
)

Request = Mapping[str, Any]


def gres(gpus: int, mib: int) -> str:
    """The request for `mib` on each GPU: whole GiB, summed over the GPUs, as Slurm counts them."""
    return f"gpumem:{gpus * math.ceil(mib / 1024)}"


def sbatch_words(body: Request, mib: int | None, foreign: Iterable[str] = ()) -> list[str]:
    """The command line. `mib`: of each GPU; None: the job has no GPU. `foreign`: sbatch's own
    options, which follow CARMA's."""
    # What a job wrote before Slurm ran it again stays, as on one server.
    words = ["sbatch", "--parsable", "--export=ALL", "--open-mode=append"]
    words.append(f"--chdir={body['cwd']}")
    if mib is not None and body["gpus"]:
        words.append(f"--gres={gres(body['gpus'], mib)}")
    for name, flag in SBATCH.items():
        words += _for_slurm(name, flag, body[name])
    words.append(f"--job-name={body['name'] or job_name(body['argv'])}")
    if body["stdout"] is None:
        words.append(f"--output=carma-{'%A_%a' if body['array'] else '%j'}.out")
    return [*words, *_own(foreign)]


def _for_slurm(name: str, flag: str, value: Any) -> list[str]:
    if name == "requeue":
        return ["--requeue" if value else "--no-requeue"]
    if not value or name == "name":
        return []
    if value is True:
        return [flag]
    return [f"{flag}={_slurm_forms().get(name, _slurm_form(name))(value)}"]


def _slurm_forms() -> dict[str, Callable[[Any], str]]:
    """Of values with several parts."""
    return {
        "array": lambda value: (
            spans([*map(str, value["indices"])]) + (f"%{value['limit']}" if value["limit"] else "")
        ),
        "after": lambda value: ",".join(f"{one['kind']}:{one['job']}" for one in value),
        "notify": lambda value: (
            ",".join(dict.fromkeys(MAILS[word] for word in value.split(",") if word in MAILS))
            or "NONE"
        ),
    }


def _slurm_form(name: str) -> Callable[[Any], str]:
    """By the unit that the option's name ends with."""
    if name.endswith("_s"):
        return clock
    if name.endswith("_at"):
        return lambda at: datetime.fromisoformat(at).astimezone().strftime("%Y-%m-%dT%H:%M:%S")
    return (lambda mib: f"{mib}M") if name.endswith("_mib") else str


def clock(seconds: float) -> str:
    """D-HH:MM:SS, rounded up."""
    minutes, second = divmod(math.ceil(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours // 24}-{hours % 24:02}:{minute:02}:{second:02}"


def _own(foreign: Iterable[str]) -> Iterator[str]:
    """As separate words. Raises Usage for what a job of CARMA's cannot be."""
    for text in foreign:
        if text.startswith("--") or not text.startswith("-"):  # or a value of the one before it
            name, _, value = text.partition("=")
            words = [text]
        else:
            name, value = text[:2], text[2:].strip(" =")
            words = [name, value] if value else [name]
        if name in ONE_NODE and value != "1":
            raise Usage(
                f"{text}: a job of CARMA's runs on one node, as one task",
                "for a program that starts itself on several nodes, use sbatch and srun",
            )
        yield from words


def clusters(foreign: Iterable[str]) -> Iterator[str]:
    """That sbatch's own options name."""
    words = [*_own(foreign)]
    for at, word in enumerate(words):
        name, given, value = word.partition("=")
        if name in ("-M", "--cluster", "--clusters"):
            yield from [value] if given else words[at + 1 : at + 2]


def step_words(body: Request) -> list[str]:
    """The options of `carma run` on the node. Raises Usage for one that it does not have."""
    if body.get("container"):
        raise Usage("--container is not for a cluster", "give `podman run …` as the command")
    words = [f"--gpus={body['gpus']}"]
    if body["memory_mib"]:
        words.append(f"--gpu-mem={body['memory_mib']}M")
    for option in OPTIONS.values():
        if option.name in COUNTED or option.name == "conda_env":
            continue
        if option.name not in SBATCH or option.name in BOTH:
            words += _for_carma(option, body[option.name])
    return words


def _for_carma(option: Option, value: Any) -> Iterator[str]:
    if value == option.default or not value:
        return
    if option.name == "layout":
        yield from (
            f"{option.flag}={format_fields(asdict(Stage(**stage)), OF_STAGE)}"
            for stage in value["stages"]
        )
        yield f"--allreduce={value['allreduce']}"
    elif option.repeated:
        yield from (
            f"{option.flag}={format_fields(asdict(StageTimes(**one)), OF_TIMES)}" for one in value
        )
    elif option.name == "warn":
        yield f"{option.flag}={value['signum']}@{value['before_s']}"
    elif value is True:
        yield option.flag
    else:
        unit = "s" if option.name.endswith("_s") else "M" if option.name.endswith("_mib") else ""
        yield f"{option.flag}={value}{unit}"


def script(body: Request, carma: str) -> str:
    """What sbatch runs on the node: no word in it, whatever it contains, is more than a word there.

    `carma`: the path of the command here; on a node that lacks it, it is looked up.
    """
    lines = [
        "#!/bin/sh",
        "# Written by `carma submit`: runs the command as a job of this node's carmad.",
        "cr=$(printf '\\r')",  # sbatch refuses scripts that contain it
        # Where the directory is missing, Slurm has gone to /tmp, to run it there.
        f"cd {quote(body['cwd'])} || {ABSENT}",
        f"carma={quote(carma)}",
        '[ -x "$carma" ] || carma=carma',
    ]
    if body.get("conda_env"):
        lines += [
            'eval "$("${CONDA_EXE:-conda}" shell.posix hook)" &&'
            f" conda activate {quote(body['conda_env'])} || exit 127"
        ]
    words = [quote(word) for word in body["argv"]]
    copied = body.get("script")
    if copied:
        at = copied["word"]
        name = re.sub(r"^.*/", "", body["argv"][at]) or "script"
        lines += [
            'copy=$(mktemp -d "${TMPDIR:-/tmp}/carma-XXXXXX") || exit 1',
            """trap 'rm -rf "$copy"' EXIT; trap : TERM INT""",
            f'printf %s {quote(copied["text"])} >"$copy"/{quote(name)} || exit 1',
        ]
        words[at] = f'"$copy"/{quote(name)}'
    run = ['"$carma"', "run", *map(quote, step_words(body)), "--"]
    tasks = [*_tasks(body)]
    if tasks:
        lines += ['case "$SLURM_ARRAY_TASK_ID" in']
        for index, argv, env in tasks:
            mine = [quote(word) for word in argv]
            if copied:
                mine[copied["word"]] = words[copied["word"]]
            sets = " ".join(f"{name}={quote(value)}" for name, value in env.items())
            lines.append(f"{index}) export {sets}; set -- {' '.join(mine)} ;;")
        lines += ["esac"]
        words = ['"$@"']
    # A copy has to be removed afterwards; else the shell has nothing more to do.
    return "\n".join([*lines, " ".join([*([] if copied else ["exec"]), *run, *words]), ""])


def _tasks(body: Request) -> Iterator[tuple[int, Sequence[str], dict[str, str]]]:
    """Of a sweep: index, command, environment."""
    columns = (body["array"] or {}).get("params")
    if not columns:
        return
    for index, row in zip(
        body["array"]["indices"], zip(*columns.values(), strict=True), strict=True
    ):
        params = tuple(zip(columns, row, strict=True))
        yield index, fill(tuple(body["argv"]), params), variables(params)


def quote(word: str) -> str:
    """For a shell in which `cr` is a carriage return."""
    return shlex.quote(word).replace("\r", "'\"$cr\"'")
