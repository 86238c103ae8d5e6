"""`sbatch`: submits a job script."""

from __future__ import annotations

from cli import client
from cli.client import exit_code, wait_for
from cli.slurm import words
from cli.slurm.request import batch_script, build_parser, job_request
from cli.submission import settle_messages

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any

USAGE = "sbatch [OPTION…] SCRIPT [ARG…]\n       sbatch [OPTION…] --wrap=COMMAND"
ABOUT = (
    "Submit a job script, from a file or standard input, to CARMA's queue on this server. Options"
    " on the command line override those in its #SBATCH lines."
)


def sbatch(args: list[str]) -> int:
    options, body, ignored = job_request(build_parser("sbatch", USAGE, ABOUT), args, batch_script)
    if body["name"] == "slurm_script":
        body["name"] = "sbatch"  # as Slurm calls what came by standard input
    if body["stdout"] is None:
        body["stdout"] = "slurm-%A_%a.out" if body["array"] else "slurm-%j.out"
    if not options.quiet:
        words.ignore("sbatch", ignored)
    settle_messages(options, body)
    if options.dry_run:
        return _test(body)
    answer = client.post("/v1/jobs", body)
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


def _test(body: dict[str, Any]) -> int:
    """--test-only. Slurm tells when it would start, on standard error."""
    answer = client.post("/v1/jobs", {**body, "dry_run": True})
    when = "now" if answer["would_start"] else "when there is room for it"
    words.say("sbatch", f"Job would start {when} on this server")
    return 0
