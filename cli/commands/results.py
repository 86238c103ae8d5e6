"""What jobs report about themselves, `report`, and the `results` of a sweep."""

from __future__ import annotations

import csv
import os
import sys
from typing import Annotated, Any

from cli import client, output, parse, sweeps
from cli.app import Json, argument, complete_jobs, option
from cli.client import resolve
from cli.options import check
from cli.problems import Usage
from cli.text import Column, Table


def report(
    metrics: Annotated[
        list[str] | None, argument("NAME=VALUE", "metrics for `carma results`, such as acc=0.91")
    ] = None,
    step: Annotated[
        float | None,
        option(
            "--step",
            metavar="TIME",
            read=parse.step,
            help="how long a training step takes: 120ms, 0.12s",
        ),
    ] = None,
    stages: Annotated[
        Any,
        option(
            "--stages",
            metavar="TIMES",
            read=parse.stage_times,
            help="with --step: what a step consists of, as for `carma submit`: 'load=10ms"
            " forward=37ms backward=76ms communication=98ms'",
        ),
    ] = None,
    job: Annotated[
        str | None,
        option(
            "--job",
            metavar="JOB",
            help="a job id, or last (default: the job that this runs in)",
            autocompletion=complete_jobs,
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Of each metric, the last value is kept. Policies use steps to decide how far to split batches
    and which jobs share a GPU: reports alone and beside another job together show how much the two
    slow each other.
    """
    if step is None and (stages or not metrics):
        raise Usage("what is to be reported?", "NAME=VALUE, or --step TIME, perhaps with --stages")
    numbers = dict(check(parse.metric, word) for word in metrics or ())
    label = resolve(_job(job))
    if numbers:
        answer = client.post(f"/v1/jobs/{label}/metrics", {"metrics": numbers})
    if step is not None:
        body = {"seconds": step} | ({"stages": stages} if stages else {})
        answer = client.post(f"/v1/jobs/{label}/step", body)
    if json:
        output.print_json(answer)
    elif step is not None:
        unused = answer.get("unused")
        effect = f", but that has no effect: {unused}" if unused else ""
        print(f"job {label}: {step:g} s a step{effect}")
    return 0


def _job(given: str | None) -> str:
    """The job that this runs in, unless another one is given."""
    job = given or os.environ.get("CARMA_JOB_ID")
    if job is None:
        raise Usage("which job?", "Give its id: --job ID; inside a job, CARMA_JOB_ID is used.")
    return job


def results(
    jobs: Annotated[
        str, argument("ARRAY", "jobs: 42, 42_3, 1,5-8 or last", autocompletion=complete_jobs)
    ] = "last",
    sort: Annotated[
        str | None,
        option("-S", "--sort", metavar="NAME", help="sort by this parameter or metric"),
    ] = None,
    reverse: Annotated[bool, option("-r", "--reverse", help="the largest first")] = False,
    as_csv: Annotated[bool, option("--csv", help="print CSV")] = False,
    json: Json = False,
) -> int:
    found = client.get("/v1/jobs", select=resolve(jobs))["jobs"]
    if sort:
        found = sweeps.sort(found, sort, reverse)
    if json:
        names = ("id", "label", "state", "params", "metrics")
        only = [{name: job.get(name) for name in names} for job in found]
        output.print_json({"schema": 1, "jobs": only})
        return 0
    columns = sweeps.columns(found)
    head = ["job", "state", *(name for _, name in columns)]
    rows = [[job["label"], job["state"], *sweeps.values(job, columns)] for job in found]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([head, *rows])
        return 0
    made = Table(
        [Column("JOBID", right=True), Column("STATE"), *map(Column, head[2:])], drops=False
    )
    for row in rows:
        made.add(*map(sweeps.cell, row))
    output.show([made])
    if not any(kind == "metrics" for kind, _ in columns):
        print("no metrics yet: jobs report them with `carma report NAME=VALUE`", file=sys.stderr)
    return 0
