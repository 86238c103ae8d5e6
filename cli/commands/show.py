"""Looking at one job, or at several: `show`, `why`."""

from __future__ import annotations

from carmad.states import NEW
from cli import client, output, render
from cli.app import Job, Json


def show(job: Job = "last", json: Json = False) -> int:
    """Of several jobs, such as an array's, it shows how many are in each state."""
    answer, jobs = client.named(job)
    if json:
        output.print_json({"schema": 1, "jobs": jobs} if jobs else answer)
        return 0
    if jobs:
        failed = render.first_failure(jobs)
        of = "the first that failed" if failed else "one of them"
        of += f": carma show {(failed or jobs[0])['label']}"
        output.show([*render.several(jobs), of])
    else:
        output.show(render.show(answer))
    return 0


def why(job: Job = "last", json: Json = False) -> int:
    """Of several jobs, such as an array's, it explains the first that failed, or that waits."""
    answer, jobs = client.named(job, "/why")
    if jobs:
        waiting = (each for each in jobs if each["state"] in NEW)
        one = render.first_failure(jobs) or next(waiting, jobs[0])
        answer = client.get(f"/v1/jobs/{one['label']}/why")
    if json:
        output.print_json({"schema": 1, "jobs": jobs, "why": answer} if jobs else answer)
    else:
        output.show([*([*render.several(jobs), ""] if jobs else ()), *render.why(answer)])
    return 0
