"""`sbatch`: submits a job script."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from carma_slurm import words
from carma_slurm.words.fields import HOST
from carma_slurm.words.request import batch_script, build_parser, job_request
from carmad.paths import fill
from cli import client
from cli.client import exit_code, wait_for
from cli.submission import settle_messages

if TYPE_CHECKING:
    from typing import Any

USAGE = "sbatch [OPTION…] SCRIPT [ARG…]\n       sbatch [OPTION…] --wrap=COMMAND"
ABOUT = (
    "Submit a job script, from a file or standard input, to CARMA's queue on this server. Options"
    " on the command line override those in its #SBATCH lines."
)


# What stands in a log's name for the node and for the batch script's place on it. The daemon knows
# the rest.
HERE = {"N": HOST, "n": "0", "t": "0", "s": "batch", "J": "%j", "%": "%%"}


def sbatch(args: list[str]) -> int:
    parser = build_parser("sbatch", USAGE, ABOUT)
    # As Slurm calls what came by standard input.
    options, body, ignored = job_request(parser, args, batch_script, "sbatch")
    if body["stdout"] is None:
        body["stdout"] = "slurm-%A_%a.out" if body["array"] else "slurm-%j.out"
    for log in ("stdout", "stderr"):
        body[log] = body[log] and fill(body[log], HERE)
    if not options.quiet:
        words.ignore("sbatch", ignored)
        if options.lost:
            words.say("sbatch", options.lost)
    settle_messages(options, body)
    if options.dry_run:
        return _test(body)
    answer = _submit(body)
    for text in answer.get("warnings", ()) if not options.quiet else ():
        words.say("sbatch", text)
    number = answer["label"].partition("_")[0]
    if options.parsable:
        print(number)
    elif not options.quiet:
        print(f"Submitted batch job {number}")
    print(end="", flush=True)  # before anything waits
    if not options.wait:
        return 0
    codes = [exit_code(wait_for(str(job))) for job in answer["ids"]]
    return max(codes)


def _submit(body: dict[str, Any]) -> Any:
    """A folder for logs that is called after the job cannot be there yet, and tools make it when
    sbatch has told them the job's number. With Slurm, that is before the job starts; here it would
    be too late. So it is made here, and the job starts when it is there."""
    named = any("%" in os.path.dirname(body[log] or "") for log in ("stdout", "stderr"))  # noqa: PTH120
    if not named:
        return client.post("/v1/jobs", body)
    answer = client.post("/v1/jobs", {**body, "held": True})
    number = answer["label"].partition("_")[0]
    try:
        for job in client.get("/v1/jobs", select=number)["jobs"]:
            for log in (job["stdout"], job["stderr"]):
                with suppress(OSError):  # the job will tell
                    os.makedirs(os.path.dirname(log), exist_ok=True)  # noqa: PTH103, PTH120
    finally:
        if not body["held"]:
            client.post("/v1/release", {"select": number, "user": None})
    return answer


def _test(body: dict[str, Any]) -> int:
    """--test-only. Slurm tells when it would start, on standard error."""
    answer = client.post("/v1/jobs", {**body, "dry_run": True})
    when = "now" if answer["would_start"] else "when there is room for it"
    words.say("sbatch", f"Job would start {when} on this server")
    return 0
