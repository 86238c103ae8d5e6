"""What jobs report about themselves: `report-step`, `report-metric`, and the `results` of a
sweep."""

from __future__ import annotations

import os
import sys

from cli import client, output, parse, sweeps
from cli.client import resolve
from cli.options import add_json, check
from cli.problems import Usage
from cli.text import Column, Table

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from argparse import Namespace

    from cli.parser import Parser

PARTS = ("load", "forward", "backward", "communication")


def _job(given: str | None) -> str:
    """The job that this runs in, unless another one is given."""
    job = given or os.environ.get("CARMA_JOB_ID")
    if job is None:
        raise Usage("which job?", "Give its id; inside a job, CARMA_JOB_ID is used.")
    return job


def report_step_options(parser: Parser) -> None:
    parser.add_argument(
        "seconds", type=parse.positive, metavar="SECONDS", help="duration of a training step"
    )
    parser.add_argument(
        "job",
        nargs="?",
        metavar="JOB",
        help="a job id, or last; by default, the job that this runs in",
    )
    for part in PARTS:
        parser.add_argument(
            f"--{part}", metavar="TIME", help="time for this part of the step, such as 20ms"
        )
    parser.add_argument(
        "--sync",
        choices=("backward", "forward"),
        help="which pass waits for the gradients: backward (this step) or forward (the next)",
    )
    add_json(parser)


def report_step(options: Namespace) -> int:
    """Castor uses it to decide how far to split batches, Cuckoo to choose which jobs share a GPU.
    Reports alone and beside another job together show how much the two slow each other.
    """
    job = _job(options.job)
    seconds = options.seconds
    body: dict[str, object] = {"seconds": seconds}
    parts = {name: getattr(options, name) for name in (*PARTS, "sync")}
    told = [f"{name}={text}" for name, text in parts.items() if text is not None]
    if told:
        body["stages"] = check(parse.stage_times, " ".join(told))
    label = resolve(job)
    answer = client.post(f"/v1/jobs/{label}/step", body)
    if options.json:
        output.print_json(answer)
    else:
        unused = answer.get("unused")
        effect = f", but that has no effect: {unused}" if unused else ""
        print(f"job {label}: {seconds:g} s a step{effect}")
    return 0


def report_metric_options(parser: Parser) -> None:
    parser.add_argument(
        "metrics", nargs="+", type=parse.metric, metavar="NAME=VALUE", help="such as acc=0.91"
    )
    parser.add_argument(
        "--job", metavar="JOB", help="a job id, or last; by default, the job that this runs in"
    )
    add_json(parser)


def report_metric(options: Namespace) -> int:
    """Of each name, the last value is kept."""
    label = resolve(_job(options.job))
    answer = client.post(f"/v1/jobs/{label}/metrics", {"metrics": dict(options.metrics)})
    if options.json:
        output.print_json(answer)
    return 0


def results_options(parser: Parser) -> None:
    parser.add_argument(
        "jobs", nargs="?", default="last", metavar="ARRAY", help="jobs: 42, 42_3, 1,5-8 or last"
    )
    parser.add_argument("-S", "--sort", metavar="NAME", help="sort by this parameter or metric")
    parser.add_argument("-r", "--reverse", action="store_true", help="the largest first")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    add_json(parser)


def results(options: Namespace) -> int:
    jobs = client.get("/v1/jobs", select=resolve(options.jobs))["jobs"]
    if options.sort:
        jobs = sweeps.sort(jobs, options.sort, options.reverse)
    if options.json:
        names = ("id", "label", "state", "params", "metrics")
        only = [{name: job.get(name) for name in names} for job in jobs]
        output.print_json({"schema": 1, "jobs": only})
        return 0
    columns = sweeps.columns(jobs)
    head = ["job", "state", *(name for _, name in columns)]
    rows = [[job["label"], job["state"], *sweeps.values(job, columns)] for job in jobs]
    if options.csv:
        import csv

        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *rows])
        return 0
    made = Table(
        [Column("JOBID", right=True), Column("STATE"), *map(Column, head[2:])], drops=False
    )
    for row in rows:
        made.add(*map(sweeps.cell, row))
    output.show([made])
    if not any(kind == "metrics" for kind, _ in columns):
        print("no metrics yet: jobs report them with `carma report-metric`", file=sys.stderr)
    return 0
