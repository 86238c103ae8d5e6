"""The tools that a user allows by name: they run programs as the user, or change jobs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NamedTuple

import anyio.from_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations
from pydantic import Field

from carma_agents.limits import Limits, as_jobs
from carma_agents.reading import Words, label_of, parse, request
from carma_agents.shapes import AgentEstimateOut, figures, largest, uses
from carmad.api.actions import ResultOut, ResultsOut
from carmad.api.guesses import EstimatesOut
from carmad.api.intake import SubmittedOut
from carmad.api.wire import parse_selection
from carmad.errors import CarmaError
from cli import client, estimation
from cli.missing import refuse_missing
from cli.submission import settle_messages
from cli.vary import safe_mib

Jobs = list[dict[str, Any]]
OneJob = Annotated[
    str | int,
    Field(
        description='the id of one job, as in the queue: 12; "12_3" for a task of an array, 12 or'
        ' "12_[0-7]" for all or some of its tasks; "last": your latest job'
    ),
]


class Request(NamedTuple):
    """What is posted, read once from the words: the files it was read from may change."""

    words: list[str]
    options: Namespace
    body: dict[str, Any]


class Selection(NamedTuple):
    verb: str
    label: str
    jobs: Jobs


class Changes:
    """The tools of one session. Each makes its change with what `prepare` has read and checked."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def estimate(
        self,
        request: Request,
        context: Context[Any, Any],
        explain: Annotated[bool, Field(description="also what the memory is used for")] = False,
        fit_mib: Annotated[
            int | None, Field(ge=1, description="find the largest batch that fits into this much")
        ] = None,
        vary: Annotated[
            str, Field(description="with fit_mib: the option of the command to vary")
        ] = estimation.VARIED,
    ) -> AgentEstimateOut:
        """Whether a command's script stops by itself, how much GPU memory it needs, and with
        `fit_mib` the largest batch that fits. It needs no GPU: the script's first steps run, as
        you, confined: it can change no file and reach no network. Takes seconds to minutes."""
        body = request.body
        if fit_mib is None:
            return _estimate(estimation.ask(body, explain), explain)
        estimation.refuse_wrap(request.options)
        found = estimation.find_largest(body, vary, fit_mib, _report_to(context))
        if found.refused and not found.tried:
            return _estimate(found.refused[1], explain)
        argv = found.command.fill(found.largest or found.command.value)
        body = {**body, "argv": argv, "memory_mib": None}
        return {**_estimate(estimation.ask(body, explain), explain), "largest": largest(found)}

    def submit(self, request: Request) -> SubmittedOut:
        """Submit a job, which runs as you, with your files. Returns its id."""
        with self._limits.spend("submit", as_jobs(request.body)):
            made: SubmittedOut = client.post("/v1/jobs", request.body)
        self._limits.remember(made["ids"])
        return made

    def cancel(self, selection: Selection) -> ResultsOut:
        """End a job."""
        return self._act(selection)

    def hold(self, selection: Selection) -> ResultsOut:
        """Keep a waiting job from being started."""
        return self._act(selection)

    def release(self, selection: Selection) -> ResultsOut:
        """Let a held job be started again."""
        return self._act(selection)

    def requeue(self, selection: Selection) -> ResultsOut:
        """Run a job that has ended once more; of an array, the tasks that failed."""
        return self._act(selection)

    def prepare(self, verb: str) -> Callable[[Any], Request | Selection]:
        """What makes a request of a tool's argument. It raises CarmaError for what may not be
        done."""
        if verb in ("estimate", "submit"):
            return self._trial if verb == "estimate" else self._submission

        def select(job: OneJob) -> Selection:
            return self._select(verb, job)

        return select

    def _trial(self, words: Words) -> Request:
        options, body = estimation.complete(*parse(words))
        self._limits.check_request(body)
        return Request(words, options, body)

    def _submission(self, words: Words) -> Request:
        options, body = request(words)
        if options.dry_run:
            raise ToolError("--dry-run submits nothing: call `what_if`")
        settle_messages(options, body)
        refuse_missing(options, body)
        self._limits.check_request(body)
        self._limits.check_time("submit", as_jobs(body))
        return Request(words, options, body)

    def _select(self, verb: str, job: str | int) -> Selection:
        label = label_of(job)
        _refuse_several(label)
        counted_singly = verb in ("release", "requeue")
        found: Jobs = client.get("/v1/jobs", select=label, fold=not counted_singly)["jobs"]
        if verb == "requeue":
            found = [job for job in found if not _is_left_alone(job, label)]
        self._limits.check_jobs(found)
        self._limits.check_time(verb, found)
        return Selection(verb, label, found)

    def _act(self, selection: Selection) -> ResultsOut:
        with self._limits.spend(selection.verb, selection.jobs) as counted:
            done: ResultsOut = client.post(f"/v1/{selection.verb}", {"select": selection.label})
        ids = {id for result in done["results"] if result["ok"] for id in _ids(result)}
        self._limits.give_back({key: job for key, job in counted.items() if key[0] not in ids})
        return done


def _ids(result: ResultOut) -> range:
    """Of the tasks that it stands for."""
    return range(result["id"], result["id"] + result.get("count", 1))


def _is_left_alone(job: dict[str, Any], label: str) -> bool:
    """Whether carmad does not requeue it, as a task of the array `label` that has not failed."""
    is_task = job["label"].partition("_")[0] == label != job["label"]
    return is_task and (job["state"] == "succeeded" or not job.get("ended_at"))


def _refuse_several(label: str) -> None:
    """Raises CarmaError for what names more than a job, or than tasks of one array."""
    named = parse_selection(label)
    jobs = named.ids | {array for array, _ in named.tasks}
    if named.last or named.all or named.ranges or len(jobs) != 1:
        raise CarmaError(
            f"{label!r:.80} may name several jobs, and a call is about one",
            "name one job, such as 42, or tasks of one array, such as 42_3 or 42_[0-7]",
        )


# What a program may ask its user for, by the protocol's words. What lets a command run is
# destructive and reaches everything that the user reaches.
_RUNS = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=True)
NATURE = {
    # It changes nothing, but it runs what it is given: a program that asks its user should ask.
    "estimate": ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
    "submit": _RUNS.model_copy(update={"idempotent_hint": False}),
    "cancel": ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=True, open_world_hint=False
    ),
    "hold": ToolAnnotations(
        read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=False
    ),
    "release": _RUNS.model_copy(update={"idempotent_hint": True}),
    "requeue": _RUNS.model_copy(update={"idempotent_hint": False}),
}


def _estimate(answer: EstimatesOut, explain: bool) -> AgentEstimateOut:
    one, found = estimation.choice(answer), answer["explanation"]
    whys = (each["why"] for each in answer["estimates"])
    return {
        "crash": answer["crash"],
        "too_large": answer.get("too_large"),
        "mib": one["mib"] if one else None,
        "safe_mib": safe_mib(one) if one else None,
        "source": one["source"] if one else None,
        "why": None if one else next(filter(None, whys), "no estimator has an answer"),
        "fits": answer["fits"],
        "estimates": [figures(each) for each in answer["estimates"]],
        "parts": one["parts"] if one and explain else {},
        "uses": uses(found) if found and explain else None,
        "largest": None,
    }


def _report_to(context: Context[Any, Any]) -> Callable[[int, Mapping[int, int]], None]:
    """Tells the program which value is tried, for each of them: it may otherwise give up."""

    def report(value: int, tried: Mapping[int, int]) -> None:
        report_progress = partial(context.report_progress, message=f"{value} is traced")
        anyio.from_thread.run(report_progress, len(tried))

    return report
