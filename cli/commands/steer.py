"""Changes jobs and waits for them: `cancel`, `hold`, `release`, `requeue`, `wait`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from cli import client, output, parse
from cli.commands.options import Json, Select, User, checked, selected
from cli.jobs import exit_code, resolve, wait_for
from cli.problems import Usage

Part = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time for this part of the step, such as 20ms.")
]


def cancel(jobs: Select, user: User = None, json: Json = False) -> None:
    """Cancel jobs. Running ones get SIGTERM, then SIGKILL."""
    _ask("cancel", jobs, user, json)


def hold(jobs: Select, user: User = None, json: Json = False) -> None:
    """Keep waiting jobs from starting."""
    _ask("hold", jobs, user, json)


def release(jobs: Select, user: User = None, json: Json = False) -> None:
    """Release held jobs."""
    _ask("release", jobs, user, json)


def requeue(jobs: Select, user: User = None, json: Json = False) -> None:
    """Run ended jobs again, under their old ids."""
    _ask("requeue", jobs, user, json)


def _ask(verb: str, jobs: list[str], user: str | None, as_json: bool) -> None:
    answer = client.post(f"/v1/{verb}", {"select": selected(jobs), "user": user})
    if as_json:
        output.print_json(answer)
    for result in answer["results"] if not as_json else ():
        line = f"job {result['label']}: {result['message']}"
        print(line, file=sys.stdout if result["ok"] else sys.stderr)
    if not all(result["ok"] for result in answer["results"]):
        raise typer.Exit(1)


def report_step(
    seconds: Annotated[float, typer.Argument(min=1e-6, help="Duration of a training step.")],
    job: Annotated[
        str | None,
        typer.Argument(
            envvar="CARMA_JOB_ID", help="A job id, or last; by default, the job that this runs in."
        ),
    ] = None,
    load: Part = None,
    forward: Part = None,
    backward: Part = None,
    communication: Part = None,
    sync: Annotated[
        str | None,
        typer.Option(
            help="Which pass waits for the gradients: backward (this step) or forward (the next)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Report how long a training step of a running job takes, and its parts.

    Castor uses it to decide how far to split batches, Cuckoo to choose which jobs share a GPU.
    Reports alone and beside another job together show how much the two slow each other.
    """
    if job is None:
        raise Usage("which job?", "Give its id; inside a job, CARMA_JOB_ID is used.")
    body: dict[str, object] = {"seconds": seconds}
    parts = {"load": load, "forward": forward, "backward": backward, "communication": communication}
    told = [f"{name}={text}" for name, text in {**parts, "sync": sync}.items() if text is not None]
    if told:
        body["stages"] = checked(parse.stage_times, " ".join(told))
    label = resolve(job)
    answer = client.post(f"/v1/jobs/{label}/step", body)
    if json:
        output.print_json(answer)
    else:
        unused = answer.get("unused")
        effect = f", but that has no effect: {unused}" if unused else ""
        print(f"job {label}: {seconds:g} s a step{effect}")


def wait(jobs: Select, json: Json = False) -> None:
    """Wait for jobs to end. Exits with the exit code of the first that failed, or 0."""
    found = client.get("/v1/jobs", select=selected(jobs))["jobs"]
    ended = []
    for job in found:
        ended.append(wait_for(job["label"]))
        if not json:
            print(f"job {job['label']}: {ended[-1]['state'].replace('_', ' ')}", flush=True)
    if json:
        output.print_json({"schema": 1, "jobs": ended})
    raise typer.Exit(next((code for job in ended if (code := exit_code(job))), 0))
