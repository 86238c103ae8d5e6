"""What agents are answered: the API's shapes, of which rows of jobs and the status have only what
an agent needs, and their JSON schemas. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from carma_agents.short import LEFT_OUT
from carmad.api.gpus import GpuOut
from carmad.api.guesses import EstimateOut, FitOut
from carmad.api.job import JobOut
from carmad.api.server import CountsOut, StatusOut
from carmad.api.why import WhyOut
from carmad.api.wire import pick
from carmad.explanation import ExplanationOut, HeldOut, RemedyOut
from cli.vary import Fit

NAMES = 12  # of your jobs in a state, and of jobs on a GPU, that the status names
ROW = (
    *("id", "label", "count", "tasks", "user", "name", "state", "reason", "position", "held"),
    *("gpus", "gpus_wanted", "memory", "submitted_at", "started_at", "ended_at", "elapsed_s"),
    *("time_limit_s", "params", "exit", "crash", "too_large", "advice", "retry"),
)

if TYPE_CHECKING:
    RowOut = JobOut
else:
    _JOB = get_type_hints(JobOut)
    RowOut = TypedDict("RowOut", {name: _JOB[name] for name in ROW}, total=False)


class RowsOut(TypedDict):
    jobs: list[RowOut]
    more: int  # jobs that the limit left out; of the history, 1 if there are any


class AgentGpuOut(TypedDict):
    index: int
    state: str
    detail: str  # of the state
    conditions: list[str]  # what is wrong with it, although it works
    memory_mib: int
    free_mib: int  # that a job could be promised
    sm_active: float | None
    jobs: list[str]  # the labels of those on it
    outsiders: int  # processes outside the queue


class AgentStatusOut(TypedDict):
    """`yours`: labels of your jobs by state; at most a dozen in each, the first ones."""

    version: str
    policy: str
    troubles: list[str]  # what affects the whole server
    user: str
    counts: CountsOut
    yours: dict[str, list[str]]
    kinds: list[str]  # of GPU
    gpus: list[AgentGpuOut]


class AgentWhyOut(WhyOut):
    job: RowOut


class LogOut(TypedDict):
    lines: list[str]
    has_earlier_lines: bool
    problem: str | None  # why there are no lines


class LargestOut(TypedDict):
    """The largest value of an option with which the command fits."""

    vary: str
    limit_mib: int
    largest: int | None
    too_large: int | None  # the smallest value that was found not to fit
    depends: bool  # false: the memory does not depend on the option
    problem: str | None  # why the search ended early
    tried_mib: dict[str, int]  # MiB by value


class FiguresOut(TypedDict):
    """An estimator's: MiB on each GPU; it is safe where `high` is free."""

    source: str
    mib: int | None
    low: int | None
    high: int | None
    why: str | None  # it has none
    notes: list[str]


class UsesOut(TypedDict):
    modules: list[HeldOut]  # the largest holders of activations
    lines: list[HeldOut]  # of the script
    remedies: list[RemedyOut]  # the best first


class AgentEstimateOut(TypedDict):
    """`crash` completes "the script stops …", `too_large` "it …"."""

    crash: str | None
    too_large: str | None  # no GPU has what it needs
    mib: int | None
    safe_mib: int | None  # a GPU with this much free is safe
    source: str | None
    why: str | None  # there is no number
    fits: list[FitOut]  # GPU by GPU
    estimates: list[FiguresOut]
    parts: dict[str, int]  # what the memory is used for, in MiB
    uses: UsesOut | None
    largest: LargestOut | None


def row(job: JobOut) -> RowOut:
    return cast(RowOut, {name: value for name, value in job.items() if name in ROW})


def rows(answer: Mapping[str, Any]) -> RowsOut:
    return {"jobs": [row(job) for job in answer["jobs"]], "more": answer.get("more", 0)}


def why_row(answer: WhyOut) -> AgentWhyOut:
    return cast(AgentWhyOut, {**answer, "job": row(answer["job"])})


def digest(answer: StatusOut, first_gpu: int = 0) -> AgentStatusOut:
    """The status in a few hundred characters, and a hundred for each GPU from the index `first_gpu`
    on."""
    me = answer["me"]["user"]
    yours: dict[str, list[str]] = {}
    for job in answer["jobs"]:
        if job["user"] == me:
            yours.setdefault(job["state"], []).append(job["label"])
    return {
        "version": answer["server"]["version"],
        "policy": answer["server"]["policy"],
        "troubles": answer["server"]["troubles"],
        "user": me,
        "counts": answer["counts"],
        "yours": {state: labels[:NAMES] for state, labels in yours.items()},
        "kinds": list(dict.fromkeys(gpu["name"] for gpu in answer["gpus"])),
        "gpus": [_gpu(gpu) for gpu in answer["gpus"] if gpu["index"] >= first_gpu],
    }


def _gpu(gpu: GpuOut) -> AgentGpuOut:
    return {
        "index": gpu["index"],
        "state": gpu["state"],
        "detail": gpu["state_detail"],
        "conditions": [condition["message"] for condition in gpu.get("conditions", ())],
        "memory_mib": gpu["memory_mib"],
        "free_mib": gpu["admissible_free_mib"],
        "sm_active": None if gpu["sm_active"] is None else round(gpu["sm_active"], 2),
        "jobs": [job["label"] for job in gpu["jobs"][:NAMES]],
        "outsiders": len(gpu["outsiders"]),
    }


def largest(found: Fit) -> LargestOut:
    cut_short = found.cut_short
    return {
        "vary": found.command.name,
        "limit_mib": found.limit_mib,
        "largest": found.largest,
        "too_large": found.too_large,
        "depends": not found.steady,
        "problem": cut_short and f"{cut_short[0]}: {cut_short[1]}",
        "tried_mib": {str(value): mib for value, mib in found.mib.items()},
    }


def figures(estimate: EstimateOut) -> FiguresOut:
    return pick(FiguresOut, None, **estimate)


def uses(found: ExplanationOut) -> UsesOut:
    return pick(UsesOut, None, **found)


def schema(shape: Any) -> dict[str, Any]:
    """The JSON schema of answers of this shape: any field may be missing, as what is empty is."""
    found: dict[str, Any] = _loosen(TypeAdapter(shape).json_schema())
    counts = {"type": "object", "additionalProperties": {"type": "integer"}}
    found["properties"][LEFT_OUT] = counts
    return found


def _loosen(value: Any, named: bool = False) -> Any:
    """Without requirements, titles and nulls, which no answer has. `named`: its keys are names of
    fields."""
    if isinstance(value, list):
        return [_loosen(each) for each in value if each != {"type": "null"}]
    if not isinstance(value, dict):
        return value
    loose = {
        key: _loosen(each, named=key in ("properties", "$defs") and not named)
        for key, each in value.items()
        if named or key not in ("required", "title", "description")
    }
    either: list[Any] = [] if named else loose.get("anyOf", [])
    return either[0] if len(either) == 1 else loose
