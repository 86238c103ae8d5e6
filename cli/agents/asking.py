"""Questions to the person at the program that an agent runs in: the program shows them, and the
agent cannot answer them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Annotated, Any

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, Field

from carmad.readable import clean
from cli.agents.limits import as_jobs, gpu_hours
from cli.text import command

NAMED = 5  # jobs in a question

Tool = Callable[..., Any]


class Consent(BaseModel):
    yes: bool = Field(title="Yes", description="Do this")


def ask_first(verb: str, tool: Tool, question: Callable[[Any], str]) -> Tool:
    """The tool, which does nothing before a person has agreed. `question`: its text, of the tool's
    first argument; it raises what the tool would refuse anyway."""

    def by_words(words: list[str], context: Context[Any, Any]) -> Elicit[Consent]:
        _refuse_silent(verb, context)
        return Elicit(question(words), Consent)

    def by_job(job: str | int, context: Context[Any, Any]) -> Elicit[Consent]:
        _refuse_silent(verb, context)
        return Elicit(question(job), Consent)

    @wraps(tool)
    def call(*, consent: object, **arguments: Any) -> Any:
        if not (isinstance(consent, AcceptedElicitation) and consent.data.yes):
            raise ToolError(
                f"the user did not agree to {verb}: nothing was done. Ask what they want"
            )
        return tool(**arguments)

    its = inspect.signature(tool, eval_str=True)
    resolve = Resolve(by_words if "words" in its.parameters else by_job)
    asked = Annotated[ElicitationResult[Consent], resolve]
    consent = inspect.Parameter("consent", inspect.Parameter.KEYWORD_ONLY, annotation=asked)
    signature = its.replace(parameters=[*its.parameters.values(), consent])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {**tool.__annotations__, "consent": asked}
    return call


def _refuse_silent(verb: str, context: Context[Any, Any]) -> None:
    """Raises ToolError in a program that cannot ask."""
    its = context.client_capabilities
    asks = its.elicitation if its else None
    if asks is None or (asks.form is None and asks.url is not None):
        raise ToolError(
            f"the user is to be asked before each {verb}, and this program shows no questions of"
            f" servers\nThe user can run it in a shell, or start `carma mcp --allow {verb}` and let"
            " the program itself ask."
        )


def about_request(verb: str, words: Sequence[str], body: Mapping[str, Any], spent: str) -> str:
    """All that an agent asks for, as the person would type it, and what it comes to."""
    line = command(["carma", verb, *words])
    text = f"Run `{line}` in {clean(body['cwd'])}?"
    return text if verb == "estimate" else f"{text} {_cost(as_jobs(body), spent)}"


def about_jobs(verb: str, label: str, jobs: Sequence[Mapping[str, Any]], spent: str) -> str:
    named = [_job(job) for job in jobs[:NAMED]]
    if len(jobs) > NAMED:
        named.append(f"and {len(jobs) - NAMED} more")
    text = f"Run `{command(['carma', verb, label])}`? {'; '.join(named)}"
    return f"{text}. {_cost(jobs, spent)}" if verb in ("release", "requeue") else text


def _job(job: Mapping[str, Any]) -> str:
    about = f"{job['label']} ({clean(job['name'])}, {job['state']})"
    return f"{about}: {command(job['argv'])}" if "argv" in job else about


def _cost(jobs: Sequence[Mapping[str, Any]], spent: str) -> str:
    hours = gpu_hours(jobs)
    gpus = sum(job["gpus_wanted"] * job.get("count", 1) for job in jobs)
    taken = f"{gpus} GPUs" if gpus != 1 else "1 GPU"
    limit = "without a time limit" if hours is None else f"at most {hours:.3g} GPU-hours"
    return f"{taken}, {limit}" + (f"; {spent}" if spent else "")
