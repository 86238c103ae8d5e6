"""One job and the daemon: finding it, waiting for its end, its exit code. Imports stay light."""

from __future__ import annotations

from carma_client.transport import Daemon
from cli import client
from cli.problems import Usage

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any


def wait_for(label: str) -> Any:
    """The ended job. A daemon that restarts meanwhile is waited for."""
    from carma_client.asking import ended
    from carma_client.steps import run

    return run(ended(Daemon(), label))


SLURM = "slurm:"


def resolve(word: str) -> str:
    """The label of `last`, or of your job in a Slurm job; any other word is already a label."""
    if word.startswith(SLURM) and word.removeprefix(SLURM).isdecimal():
        found = client.get("/v1/jobs", slurm_job=word.removeprefix(SLURM))["jobs"]
        if not found:
            raise Usage(
                f"no job of yours runs here in Slurm job {word.removeprefix(SLURM)}",
                "it has one from its `carma run` on",
            )
        return str(found[-1]["label"])
    if word != "last":
        return word
    jobs = client.get("/v1/jobs", select="last")["jobs"]
    if not jobs:
        raise Usage("you have no jobs yet", "name a job by its id")
    return str(jobs[0]["label"])


def exit_code(job: dict[str, Any]) -> int:
    """0 only for success; otherwise the program's code, 128+N if signal N ended it, or 1."""
    if job["state"] == "succeeded":
        return 0
    how = job.get("exit") or {}
    if how.get("signal"):
        return 128 + int(how["signal"])
    return int(how.get("code") or 1)
