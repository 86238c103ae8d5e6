"""The accuracy of each memory estimator on this server: `estimators`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli import client, output
from cli.app import Json

if TYPE_CHECKING:
    from carmad.api.estimates import EstimatorsOut
    from cli.table import Block


def estimators(json: Json = False) -> None:
    """Compare each memory estimator with what jobs were measured to use.

    BIAS is the median error, positive for estimates that are too high. Half of the errors are
    within P50, 95% within P95. THEN is P50 of the older half of these jobs, NOW of the newer half:
    whether it has become better. UNTAUGHT is P50 without what the estimator has learned from
    similar jobs. UNDER is the share of jobs that used more than the upper end of their estimate.
    """
    answer = client.get("/v1/estimators")
    if json:
        output.print_json(answer)
    else:
        output.show(report(answer))


def report(answer: EstimatorsOut) -> list[Block]:
    from carmad.readable import clean
    from cli.format import NOTHING, memory
    from cli.render import heading
    from cli.table import Table, columns, in_style

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
