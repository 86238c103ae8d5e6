"""What a job tells about itself: `report-step`, `report-metric`."""

from __future__ import annotations

import os

from cli import client, output, parse
from cli.client import resolve
from cli.options import add_json, check
from cli.problems import Usage

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
    """Report how long a training step of a running job takes, and its parts.

    Castor uses it to decide how far to split batches, Cuckoo to choose which jobs share a GPU.
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
    """Report metrics of a running job, such as its accuracy, for `carma results`.

    Of each name, the last value is kept.
    """
    label = resolve(_job(options.job))
    answer = client.post(f"/v1/jobs/{label}/metrics", {"metrics": dict(options.metrics)})
    if options.json:
        output.print_json(answer)
    return 0
