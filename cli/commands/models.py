"""What was learned, for `carma doctor`: the models of policies and predictors, and how accurate the
estimators of memory are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from carmad.installed import how_to_add
from carmad.readable import clean
from cli import client, output
from cli.text import NOTHING, Table, columns, heading, in_style, local_time, memory, span

if TYPE_CHECKING:
    from carmad.api.estimates import EstimatorsOut
    from carmad.api.models import ModelsOut, TrainingOut
    from cli.text import Block


def show(train: bool, json: bool) -> int:
    answer = client.post("/v1/models/train", None) if train else client.get("/v1/models")
    if json:
        output.print_json(answer)
    elif train:
        print("training has started and takes minutes: see `carma doctor --models`")
    else:
        output.show(model_list(answer))
    return 0


def model_list(answer: ModelsOut) -> list[Block]:
    made = Table(columns("MODEL~ KIND ROWS> TRAINED ERROR> PREDICTS*"))
    for one in answer["models"]:
        made.add(
            clean(one["name"]),
            one["kind"],
            str(one["rows"]),
            local_time(one["trained_at"]) if one["trained_at"] else "shipped",
            next((f"{clean(name)} {error:.3g}" for name, error in one["errors"].items()), NOTHING),
            clean(one["about"]),
        )
    return [made, *(in_style(line, "dim") for line in _training(answer["training"]))]


def _training(training: TrainingOut) -> Iterator[str]:
    days = training["every_days"]
    yield ""
    if training["lacking"]:
        what = training["lacking"]
        yield f"no models are trained here: {what} is missing ({how_to_add('policies')})"
        return
    often = "only on request"
    if days:
        often = f"every {days:g} days" if days >= 1 else f"every {span(days * 86_400)}"
    yield f"trained {often}, last {local_time(training['last_at'])}"
    if training["under_way"]:
        yield "being trained now"
    yield from (f"  · {clean(line)}" for line in training["last_words"])


def show_estimators(json: bool) -> int:
    answer = client.get("/v1/estimators")
    if json:
        output.print_json(answer)
    else:
        output.show(accuracy_table(answer))
    return 0


def accuracy_table(answer: EstimatorsOut) -> list[Block]:
    made = Table(columns("ESTIMATOR~ JOBS> BIAS> P50> P95> THEN> NOW> UNTAUGHT> UNDER>"))
    for one in answer["estimators"]:
        bias, under = one["bias_mib"], one["under"]
        made.add(
            clean(one["name"]),
            str(one["jobs"]),
            NOTHING if bias is None else f"{'-' if bias < 0 else '+'}{memory(abs(bias))}",
            memory(one["p50_mib"]),
            memory(one["p95_mib"]),
            memory(one["early_p50_mib"]),
            memory(one["recent_p50_mib"]),
            memory(one["untaught_p50_mib"]),
            NOTHING if under is None else f"{under:.0%}",
        )
    head = f"in use: {clean(answer['estimator'])}; based on {answer['jobs']} jobs that succeeded"
    parts: list[Block] = [in_style(head, "bold"), made]
    if answer["contexts"]:
        parts += heading("context, as the trace estimator has learned it")
    for learned in answer["contexts"]:
        context = memory(learned["context_mib"])
        parts.append(f"  {clean(learned['stack'])}: {context}, {learned['jobs']} jobs")
    return parts
