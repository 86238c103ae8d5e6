"""Questions to the person at the program that an agent runs in: the program shows them, and the
agent cannot answer them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from hashlib import sha256
from typing import Annotated, Any

from mcp.server.elicitation import AcceptedElicitation, ElicitationResult
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel, ConfigDict, Field

from carma_agents.limits import as_jobs, gpu_hours
from carmad.readable import clean
from cli.text import command

NAMED = 5  # jobs in a question

Tool = Callable[..., Any]


def as_tool(
    verb: str,
    change: Callable[..., Any],
    prepare: Callable[[Any], Any],
    question: Callable[[Any], str] | None,
) -> Tool:
    """The tool that makes a change with what is prepared from its argument. `change`: its first
    parameter is what `prepare` returns. `prepare`: raises ToolError for what is refused. `question`
    about what is prepared: nothing is done before a person has said yes to it."""
    (argument,) = inspect.signature(prepare, eval_str=True).parameters.values()
    its = inspect.signature(change, eval_str=True)
    _, *others = its.parameters.values()
    resolved: dict[str, Any] = {"prepared": Annotated[Any, Resolve(prepare)]}
    if question:
        resolve = Resolve(_ask(verb, resolved["prepared"], question))
        resolved["consent"] = Annotated[ElicitationResult[Any], resolve]

    @wraps(change)
    def call(*, prepared: Any, consent: object = None, **arguments: Any) -> Any:
        del arguments[argument.name]
        if question and not (isinstance(consent, AcceptedElicitation) and consent.data.yes):
            raise ToolError(
                f"the user did not agree to {verb}: nothing was done. Ask what they want"
            )
        return change(prepared, **arguments)

    keyword = inspect.Parameter.KEYWORD_ONLY
    filled = [inspect.Parameter(name, keyword, annotation=each) for name, each in resolved.items()]
    signature = its.replace(parameters=[argument, *others, *filled])
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    return call


def _ask(verb: str, prepared: Any, question: Callable[[Any], str]) -> Callable[..., Any]:
    """What puts the question. `prepared`: the annotation of what it is about."""

    def ask(prepared: Any, context: Context[Any, Any]) -> Elicit[Any]:
        _refuse_silent(verb, context)
        return Elicit(question(prepared), _form(prepared))

    ask.__annotations__ = {"prepared": prepared, "context": Context[Any, Any]}
    return ask


def _form(prepared: Any) -> type[BaseModel]:
    """What a person fills in. By the protocol since 2026-07-28, a request is made anew when the
    answer comes, and an answer to a question that now differs does not count: so the form has the
    digest of the whole request, of which the question shows only some."""
    body = getattr(prepared, "body", None)
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()

    class Consent(BaseModel):
        model_config = ConfigDict(json_schema_extra={"$comment": digest} if body else None)
        yes: bool = Field(title="Yes", description="Do this")

    return Consent


def _refuse_silent(verb: str, context: Context[Any, Any]) -> None:
    """Raises ToolError in a program that cannot ask."""
    its = context.client_capabilities
    asks = its.elicitation if its else None
    if asks is None or (asks.form is None and asks.url is not None):
        raise ToolError(
            f"the user wants to be asked before each {verb}, but this program cannot show them a"
            f" question from CARMA\nThey can run it in a shell, or start `carma mcp --allow {verb}`"
            " and let the program itself ask."
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
