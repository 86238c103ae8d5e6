"""`carma submit` on a login node: estimate the memory, then sbatch, as the user."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carma_slurm import login
from carma_slurm.login import jobs, request, slurm
from carmad.core.jobs.recurrence import fill, tells, variables
from carmad.errors import CarmaError
from carmad.readable import clean, gib
from cli import output
from cli import submission as here
from cli.problems import INTERRUPTED, Problem, Unknown, Usage

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Sequence

# Options of `carma submit` that a cluster has no use for, and what to do.
REFUSED = {
    "urgent": "Slurm decides whose jobs go first: ask for a QOS with --qos NAME",
    "unless_running": "sbatch --dependency=singleton waits for jobs of the same name",
    "no_copy": "give the command itself: carma submit -- bash SCRIPT",
}
MEMORY_HINT = "give --gpu-mem, such as --gpu-mem 12G; carma estimate says more"
KEPT = "SLURM_CONF"
WHOLE = "whole GPU"
MOST_TRIED = 4  # combinations of a sweep: each trace takes seconds


def submit(given: Namespace) -> int:
    """Submit a command or a job script to Slurm; see `carma submit --help`."""
    foreign: list[str] = []
    options, body = here.complete(given, given.command or (), foreign=foreign, known=jobs.resolve)
    _refuse(options)
    if body["argv"][0] == "-":
        raise Usage("a job script is not read from standard input", "give the path of a file")
    foreign += options.ignored or ()
    if mails := [*filter(None, (options.notify, options.mail_type))]:
        body["notify"] = ",".join(mails)
    if not options.quiet:
        here.warn_of_place(options)
        here.warn_of_script(body, in_place="carma submit -- SHELL SCRIPT")
    mib, source = _memory(body, options) if body["gpus"] else (None, "")
    words = request.sbatch_words(body, mib, [*foreign, *_where(foreign)])
    script = request.script(body, str(Path(sys.argv[0]).absolute()))
    answer = {
        "schema": 1,
        "engine": login.setting("engine"),
        "gres": request.gres(body["gpus"], mib) if mib else None,
        "memory_mib": mib,
        "memory_source": source,
    }
    if options.dry_run:
        return _dry_run(answer | {"argv": words, "script": script}, options.json)
    said = slurm.ask(*words, text=script, env=environment(body))
    label = said.partition(";")[0].strip()  # with several clusters, the cluster's name follows
    if not label.isdecimal():
        raise Unknown(f"sbatch says {clean(said)!r} instead of a number", slurm.UNKNOWN)
    _tell(label, answer, options)
    if not options.wait:
        return 0
    try:
        return next(jobs.ends([label], known=True)).exit_code
    except KeyboardInterrupt:
        hint = f"job {label} continues; `carma wait {label}` waits, `carma cancel {label}` ends it"
        print(f"\ncarma: {hint}", file=sys.stderr)
        return INTERRUPTED


def _refuse(options: Namespace) -> None:
    for name, instead in REFUSED.items():
        if getattr(options, name):
            raise Usage(f"--{name.replace('_', '-')} is not for a cluster", instead)


def _where(foreign: Sequence[str]) -> list[str]:
    """The cluster that the other verbs ask, so that the job does not go elsewhere. Raises Usage."""
    chosen = slurm.cluster_choice()
    asked = {*request.clusters(foreign), os.environ.get("SBATCH_CLUSTERS", "")}
    if elsewhere := asked - {chosen, ""}:
        name = ", ".join(sorted(elsewhere))
        raise Usage(
            f"the job would go to {name}, but carma asks {chosen or 'the cluster of slurm.conf'}",
            "leave --clusters and SBATCH_CLUSTERS out, and export SLURM_CLUSTERS=NAME, which is for"
            " all of carma's commands",
        )
    return [f"--clusters={chosen}"] if chosen else []


def _memory(body: dict[str, Any], options: Namespace) -> tuple[int, str]:
    """MiB of each GPU that are asked for, and who says so: of a sweep, the most of any task that
    was tried. Raises Problem if nobody knows."""
    if body["memory_mib"]:
        return body["memory_mib"], "declared"
    mib, source = max(_estimate(task, options) for task in _samples(body))
    if not options.quiet:
        if source == WHOLE:
            output.note(
                f"no estimate of its GPU memory: asks for {gib(mib)} per GPU; {MEMORY_HINT}"
            )
        else:
            output.note(f"{gib(mib)} per GPU, estimated by {source}")
    return mib, source


def _samples(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The job as it is estimated; of a sweep, tasks whose parameters may tell memory, the first
    and the last among them."""
    columns = (body["array"] or {}).get("params")
    known = {name: value for name, value in body.items() if name not in ("script", "array")}
    if not columns:
        return [known]
    rows = zip(*columns.values(), strict=True)
    unlike: dict[Any, Any] = {}  # by what may tell memory
    for params in (tuple(zip(columns, row, strict=True)) for row in rows):
        unlike.setdefault(tuple(one for one in params if tells(*one)), params)
    found = list(unlike.values())
    steps = min(len(found), MOST_TRIED) - 1
    tried = [found[at * (len(found) - 1) // max(steps, 1)] for at in range(steps + 1)]
    return [
        known
        | {
            "argv": list(fill(tuple(body["argv"]), params)),
            "export": body["export"] | variables(params),
        }
        for params in tried
    ]


def _estimate(known: dict[str, Any], options: Namespace) -> tuple[int, str]:
    try:
        from carmad.api.guesses import estimate_alone

        answer = estimate_alone(known, explain=False)
        crash, found = answer["crash"], [one for one in answer["estimates"] if one["chosen"]]
        why = next((one["why"] for one in answer["estimates"] if one["why"]), None)
    except CarmaError as error:
        crash, found, why = None, [], error.message
    if crash and not here.is_silent(options):
        raise Problem(
            f"your script stops {clean(crash)}",
            "nothing was submitted: correct it; or, if it only stops here, submit it --anyway with"
            " --gpu-mem",
        )
    if found and (mib := found[0]["high"] or found[0]["mib"]):
        return mib, found[0]["source"]
    whole = _whole_gpu_gib()
    if not whole:
        because = f": {clean(why)}" if why else ""
        raise Problem(f"the job's GPU memory cannot be estimated{because}", MEMORY_HINT)
    return whole * 1024, WHOLE


def _whole_gpu_gib() -> int:
    given = login.setting("gpu_gib") or 0
    if not str(given).isdecimal():
        raise Usage(f"cluster.gpu_gib is {given!r}, but should be a whole number of GiB")
    return int(given)


def environment(body: dict[str, Any]) -> dict[str, str]:
    """What the job inherits: as from a daemon. sbatch's own settings stay, too."""
    from carmad.attempt.environment import scrub

    own = {
        name: value
        for name, value in os.environ.items()
        if name == KEPT or name.startswith("SBATCH_")
    }
    env: dict[str, str] = scrub(body["env"]) | own | body["export"]
    return env


def _dry_run(answer: dict[str, Any], as_json: bool) -> int:
    if as_json:
        print(json.dumps(answer))
    else:
        print(f"{shlex.join(answer['argv'])} <<'SCRIPT'\n{answer['script']}SCRIPT")
    return 0


def _tell(label: str, answer: dict[str, Any], options: Namespace) -> None:
    if options.json:
        print(json.dumps(answer | {"id": int(label), "label": label}))
    elif options.parsable:
        print(label)
    elif not options.quiet:
        print(f"Submitted batch job {label}")
    print(end="", flush=True)  # before anything waits
