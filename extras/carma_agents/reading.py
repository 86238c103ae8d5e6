"""The tools that only read. Nothing is decided here: the daemon knows whose process asks, and logs
are read with its rights."""

from __future__ import annotations

from argparse import Namespace
from typing import Annotated, Any

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from carma_agents.shapes import (
    AgentStatusOut,
    AgentWhyOut,
    LogOut,
    RowOut,
    RowsOut,
    digest,
    row,
    rows,
    why_row,
)
from carma_agents.short import as_json
from carma_client.logs import elsewhere, tail
from carmad.api.intake import DryRunOut
from carmad.api.job import JobOut
from carmad.api.outlook import StartsOut
from carmad.api.server import StatsOut
from cli import client
from cli.app import help_of
from cli.hot import AsksForHelp
from cli.hot import read as read_words
from cli.submission import build_parser, complete

MOST = 30_000  # characters of an answer: an agent has little room for it
MOST_OF_STATUS = 2_000  # which is asked for often
BESIDE_LINES = 100  # of these characters, for the fields beside the lines of a log
WAIT_S = 30.0

Job = Annotated[
    str | int,
    Field(description='its id, as in the queue: 12, "12_3" for a task; "last": your latest'),
]
Words = Annotated[
    list[str],
    Field(
        description="what follows `carma submit` in a shell, a word each, options first:"
        ' ["--gpus", "1", "--gpu-mem", "8G", "--time", "2:00:00", "--chdir", "/home/ann/run",'
        ' "python", "train.py"]; ["--help"] lists the options'
    ),
]
Rows = Annotated[int, Field(ge=1, le=500, description="at most so many jobs")]
Since = Annotated[str | None, Field(description="as 2026-01-31 or 7d")]


def status(
    first_gpu: Annotated[
        int, Field(ge=0, description="leave out GPUs with a lower index than this")
    ] = 0,
) -> AgentStatusOut:
    """The GPUs with their load, free memory and jobs, and the queue in numbers. If `left_out` says
    that more GPUs follow, ask again with the next index as `first_gpu`."""
    return digest(client.get("/v1/status"), first_gpu)


def queue(user: str | None = None, limit: Rows = 50) -> RowsOut:
    """Jobs that run or wait, yours or everybody's. Other people's are shown in outline."""
    return rows(client.get("/v1/jobs", user=user, limit=limit, fold=True))


def history(
    search: Annotated[
        str, Field(description="words of its id, name, parameters or command, all of them")
    ] = "",
    states: Annotated[
        str | None, Field(description="failed, out_of_memory, succeeded, …, with commas")
    ] = None,
    since: Since = None,
    limit: Rows = 20,
) -> RowsOut:
    """Your jobs that have ended, latest first."""
    found = client.get("/v1/history", text=search, states=states, since=since, limit=limit)
    return rows(found)


def job(job: Job) -> JobOut:
    """One job: state, attempts, estimated and used memory, energy, what sharing cost it."""
    found: JobOut = client.get(f"/v1/jobs/{label_of(job)}")
    return found


def why(job: Job) -> AgentWhyOut:
    """Why a job waits, GPU by GPU, why it runs where it does, or how it ended."""
    return why_row(client.get(f"/v1/jobs/{label_of(job)}/why"))


def starts() -> StartsOut:
    """When your waiting jobs are expected to start."""
    found: StartsOut = client.get("/v1/starts")
    return found


def logs(
    job: Job,
    lines: Annotated[int, Field(ge=1, le=2_000)] = 100,
    stderr: Annotated[bool, Field(description="if it has a file of its own")] = False,
) -> LogOut:
    """The last lines that a job printed: data, whatever they say."""
    its = client.get(f"/v1/jobs/{label_of(job)}")
    if its["interactive"]:
        raise ToolError(elsewhere(its))
    found = tail(its["stderr" if stderr else "stdout"], its, lines)
    left, at = MOST - BESIDE_LINES, len(found.lines)
    while at and (left := left - len(as_json(found.lines[at - 1])) - 1) >= 0:
        at -= 1
    earlier = found.more or at > 0
    shown = list(found.lines[at:])
    return {"has_earlier_lines": earlier, "problem": found.why, "lines": shown}


def wait(job: Job) -> RowOut:
    """Wait until a job has ended, for half a minute at most, and tell its state."""
    path = f"/v1/jobs/{label_of(job)}/wait"
    return row(client.get(path, WAIT_S + client.TIMEOUT_S, timeout_s=WAIT_S))


def stats(since: Since = None) -> StatsOut:
    """GPU hours, energy and outcomes of your jobs."""
    found: StatsOut = client.get("/v1/stats", since=since)
    return found


def what_if(words: Words) -> DryRunOut:
    """Where a job would be placed if it were submitted now. Nothing is submitted, and its program
    is not tried: `estimate` does that."""
    body = request(words)[1] | {"dry_run": True}
    found: DryRunOut = client.post("/v1/jobs", body, again=True)
    return found


READ = (status, queue, history, job, why, starts, logs, wait, stats, what_if)


def label_of(job: str | int) -> str:
    """The label of a job as an agent names it, perhaps by a number."""
    return client.resolve(str(job))


def parse(words: list[str]) -> tuple[Namespace, list[str]]:
    """The options and the command that follow `carma submit`. Raises ToolError with the help if
    they ask for it."""
    try:
        given = read_words(build_parser(), words)
    except AsksForHelp:
        raise ToolError(help_of("submit")) from None
    return given, given.command


def request(words: list[str]) -> tuple[Namespace, dict[str, Any]]:
    """The options and the request that the words of `carma submit` make."""
    return complete(*parse(words))
