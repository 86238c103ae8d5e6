"""Looking at jobs from a login node: `queue`, `show`, `why`, `status`, `logs`. Slurm is asked
first, then, about a running job, the carmad of its node."""

from __future__ import annotations

import os
import sys
import time
from json import dumps, loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

from carma_client.logs import BLOCK, last_lines, news
from carma_slurm.login import jobs, slurm
from carmad.readable import clean, gpumem_count
from carmad.states import NEW
from cli import output
from cli.client import SLURM
from cli.options import states_of, user_of
from cli.overview import STATE_STYLE
from cli.problems import Problem, Unreachable, Usage
from cli.text import NOTHING, Table, columns, heading, in_style, pairs

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence
    from typing import BinaryIO

    from cli.text import Block

UNKNOWN = ("N/A", "Unknown", "(null)", "")
NO_OUTPUT = "0:53"  # so slurmstepd ends if it cannot open the files
NOT_HERE = {
    "format": "squeue -o shows other columns",
    "long": "squeue -l shows more columns, and carma show JOB everything",
    "sort": "squeue -S sorts",
    "start": "squeue --start says when Slurm expects jobs to start",
    "watch": "watch -n 5 carma queue",
}


def queue(options: Namespace) -> int:
    for name, instead in NOT_HERE.items():
        if getattr(options, name):
            raise Usage(f"--{name} is not for a cluster", instead)
    listed = _rows(options)
    if options.json:
        output.print_json({"schema": 1, "jobs": [_as_json(row) for row in listed]})
    else:
        output.show(_table(listed, not options.noheader))
    return 0


def _rows(options: Namespace) -> list[slurm.Row]:
    names, codes = states_of(options.states)
    words = ["--states=all"] if names else []
    if options.array or options.json:
        words.append("--array")
    if user := user_of(options.user, options.me):
        words.append(f"--user={user}")
    if options.jobs:
        words.append(f"--jobs={','.join(jobs.select([options.jobs]))}")
    wanted = names.split(",") if names else ()
    return [
        row
        for row in slurm.rows(*words)
        if not names or (row.state.name in wanted and (not codes or row.state.code in codes))
    ]


def _as_json(row: slurm.Row) -> dict[str, Any]:
    return {
        "id": row.id,
        "label": row.label,
        "name": row.name,
        "user": row.user,
        "state": row.state.name,
        "code": row.state.code,
        "reason": None if row.state.name not in NEW else row.why.slurm,
        "nodes": row.nodes or None,
        "gpumem_gib": row.gpumem_gib,
        "elapsed": row.elapsed,
        "time_limit": row.limit,
        "submitted_at": row.submitted,
        "started_at": None if row.starts in UNKNOWN else row.starts,
    }


def _table(listed: Sequence[slurm.Row], header: bool = True) -> list[Block]:
    made = Table(columns("JOBID> NAME~ USER ST TIME> LIMIT>? GPUMEM> NODE(REASON)~"), header=header)
    for row in listed:
        made.add(
            row.label,
            clean(row.name),
            row.user,
            in_style(row.state.code, STATE_STYLE.get(row.state.code, "")),
            row.elapsed,
            row.limit,
            NOTHING if row.gpumem_gib is None else f"{row.gpumem_gib}G",
            _where(row),
        )
    return [made]


def _where(row: slurm.Row) -> str:
    waits = row.state.name in NEW
    return f"({clean(row.why.slurm)})" if waits else row.nodes or NOTHING


def show(job: str = "last", json: bool = False) -> int:
    row, more = jobs.record(jobs.resolve(job))
    there, missing = _on_node(row, "show", json)
    if json:
        print(dumps({**_as_json(row), "slurm": more, "carma": there, "why_not": missing}))
        return 0
    facts = [
        ("job", clean(f"{row.label}  {row.name}")),
        ("user", row.user),
        ("state", row.state.name.replace("_", " ")),
        ("node", row.nodes or NOTHING),
        (
            "GPU memory",
            NOTHING if row.gpumem_gib is None else f"{row.gpumem_gib} GiB over its GPUs",
        ),
        ("time", f"{row.elapsed} of {row.limit}"),
        ("submitted", row.submitted),
        ("ended", more.get("EndTime", NOTHING) if row.state.ended else NOTHING),
        ("exit", more.get("ExitCode", NOTHING) if row.state.ended else NOTHING),
        ("directory", clean(more.get("WorkDir", NOTHING))),
        ("output", clean(more.get("StdOut") or NOTHING)),
    ]
    if row.state.name in NEW:
        facts.insert(3, ("waits", row.why.text))
    output.show([pairs([(name, value) for name, value in facts if value != NOTHING])])
    _show_node(row, there, missing)
    return 0


def why(job: str = "last", json: bool = False) -> int:
    row, more = jobs.record(jobs.resolve(job))
    there, missing = _on_node(row, "why", json)
    text = _why(row, more)
    if json:
        print(dumps({**_as_json(row), "text": text, "carma": there, "why_not": missing}))
        return 0
    output.show([f"job {row.label} {text}"])
    _show_node(row, there, missing)
    return 0


def _why(row: slurm.Row, more: Mapping[str, str]) -> str:
    """Completes "job 42 "."""
    if row.state.name in NEW:
        expected = "" if row.starts in UNKNOWN else f"; Slurm expects it to start at {row.starts}"
        return f"waits: {row.why.text}{expected}"
    if row.state.ended:
        code = more.get("ExitCode", "")
        word = row.why.slurm if row.why.slurm != "None" else ""
        if code == NO_OUTPUT:
            word = "its output could not be written on the node: is there that folder?"
        how = ", ".join(filter(None, (word, f"exit code {code}" if code else "")))
        ending = row.state.name.replace("_", " ")
        if row.never_ran:
            return f"has ended before it ran: {ending}"
        see = "" if row.state.name == "succeeded" else f"; its output: carma logs {row.label}"
        return f"has ended: {ending}{f' ({how})' if how else ''}{see}"
    return f"runs on {row.nodes}, for {row.elapsed}"


def _on_node(row: slurm.Row, verb: str, as_json: bool) -> tuple[Any, str]:
    """What the node's carmad says of a running job, and why it does not."""
    if row.state.name != "running":
        return None, ""
    try:
        said = ask_node(row, verb, *(["--json"] if as_json else []))
        return (loads(said) if as_json else said), ""
    except Problem as error:
        return None, error.message
    except ValueError:
        return None, "its carma gives no answer that can be read"


def _show_node(row: slurm.Row, there: Any, missing: str) -> None:
    if there:
        output.show(heading(f"on {row.nodes}"))
        output.show(there.splitlines())
    elif missing:
        output.note(f"nothing from {row.nodes}: {missing}")


def status(json: bool = False, follow: bool = False, **_: object) -> int:
    if follow:
        raise Usage("--follow is for a node, where a carmad runs", "watch -n 5 carma status")
    found, listed = _nodes(), slurm.rows()
    if json:
        rows = [_as_json(row) for row in listed]
        output.print_json({"schema": 1, "nodes": found, "jobs": rows})
        return 0
    made = Table(columns("NODE STATE GPUMEM(USED/ALL)> CPUS(USED/ALL)> REASON~"))
    for one in found:
        made.add(
            *(one["name"], one["state"]),
            f"{one['gpumem_used_gib']}G/{one['gpumem_gib']}G",
            f"{one['cpus_used']}/{one['cpus']}",
            clean(one["reason"] or NOTHING),
        )
    output.show([made, "", *_table(listed)])
    return 0


def _nodes() -> list[dict[str, Any]]:
    names = ("NodeList", "StateLong", "Gres", "GresUsed", "CPUsState", "Reason")
    mark = "\x1f"
    shape = ",".join(f"{name}:{mark}" for name in names)
    found = {}  # a node has a line for each of its partitions
    for line in slurm.ask("sinfo", "--noheader", "--Node", "-O", shape).splitlines():
        if line.count(mark) != len(names):
            continue
        name, state, gres, used, cpus, reason, _ = line.split(mark)
        busy, _, _, total = cpus.split("/")
        found[name] = {
            "name": name,
            "state": state,
            "gpumem_used_gib": gpumem_count(used) or 0,
            "gpumem_gib": gpumem_count(gres) or 0,
            "cpus_used": int(busy),
            "cpus": int(total),
            "reason": None if reason == "none" else reason,
        }
    return list(found.values())


WITHIN_S = 30.0
# The command by its path here, if the node has it there, too.
CARMA = 'carma=$0; [ -x "$carma" ] || carma=carma; exec "$carma" "$@"'


def ask_node(row: slurm.Row, verb: str, *options: str) -> str:
    """What `carma VERB` says there about the job. Raises Problem."""
    own = os.path.abspath(sys.argv[0])  # noqa: PTH100
    step = ("--overlap", "--nodes=1", "--ntasks=1", "--quiet")
    return slurm.ask(
        *("srun", f"--jobid={row.id}", *step, "sh", "-c", CARMA, own),
        *(verb, *options, f"{SLURM}{row.id}"),
        within_s=WITHIN_S,
    )


ASK_S = 5.0  # between questions to Slurm's controller


def logs(
    job: str = "last", follow: bool = False, tail: int | None = None, stderr: bool = False
) -> int:
    row, more = jobs.record(jobs.resolve(job))
    label = str(row.id)
    path = more.get("StdErr" if stderr else "StdOut", "")
    if row.never_ran:
        raise Problem(f"job {row.label} never ran: it has no output")
    if not path:
        raise Problem(
            f"Slurm's accounts do not tell the output file of job {row.label}",
            f"if it is no other, it is slurm-{row.label}.out in {clean(more['WorkDir'])}",
        )
    if path == "(null)":
        raise Problem(f"job {row.label} has no output file: it runs at a terminal")
    if follow and not Path(path).exists() and not row.state.ended:
        output.note(f"job {row.label} has no output yet; waiting for it")
        while not Path(path).exists() and not _has_ended(label):
            time.sleep(ASK_S)
    output.write(_texts(row, path, follow, tail))
    return 0


def _texts(row: slurm.Row, path: str, follow: bool, tail: int | None) -> Iterator[bytes]:
    """What is to be printed of a job's log."""
    try:
        with Path(path).open("rb") as file:
            if tail is not None:
                size = os.fstat(file.fileno()).st_size
                yield from last_lines(file, [(0, size)], tail)
                file.seek(size)
            yield from _rest(file)
            if follow:
                label = str(row.id)
                yield from news(lambda: _rest(file), lambda: _has_ended(label), time.sleep, ASK_S)
    except FileNotFoundError:
        if row.state.name in NEW:
            raise Problem(
                f"job {row.label} has not started: there is no output yet",
                f"see carma why {row.label}",
            ) from None
        raise Problem(
            f"{clean(path)} is not here",
            "is its folder shared with the nodes? if not, it is on the node that ran the job",
        ) from None
    except OSError as error:
        raise Problem(f"cannot read {clean(path)}: {error.strerror}") from None


def _has_ended(label: str) -> bool:
    """Also if Slurm has forgotten it. While its controller is away, nothing has."""
    try:
        return slurm.row(label).state.ended
    except slurm.Gone:
        return True
    except Unreachable:
        return False


def _rest(file: BinaryIO) -> Iterator[bytes]:
    if os.fstat(file.fileno()).st_size < file.tell():  # it was truncated
        file.seek(0)
    while block := file.read(BLOCK):
        yield block
