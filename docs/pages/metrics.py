"""metrics.md: every figure for Prometheus, from their declarations."""

from __future__ import annotations

from carmad.metrics.declared import METRICS
from docs.pages.text import cell


def page() -> str:
    out = [
        "# Metrics",
        "",
        "What `GET /v1/metrics` answers on the daemon's socket, and a process of its own on"
        " `metrics.listen`:"
        " see [Monitoring with Prometheus](../admins.md#monitoring-with-prometheus)."
        " Those of users and of jobs are published only if the settings say so. Counters and"
        " histograms begin with the daemon. What is not measured is left out.",
        "",
        "| Name | Kind | Labels | Meaning |",
        "|---|---|---|---|",
    ]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        out.append(f"| `{metric.name}` | {metric.kind} | {labels} | {cell(metric.help)} |")
    out += [
        "",
        "`gpu` is the index of a GPU or MIG instance, as in `carma gpus`. A histogram has the"
        " series `_bucket`, `_count` and `_sum`; its buckets:",
        "",
        "| Name | Upper bounds |",
        "|---|---|",
    ]
    for metric in METRICS:
        if metric.buckets:
            out.append(f"| `{metric.name}` | {', '.join(f'{each:g}' for each in metric.buckets)} |")
    out += [
        "",
        "Of carmad's own process there are also `process_resident_memory_bytes`,"
        " `process_cpu_seconds_total`, `process_open_fds`, `process_start_time_seconds`"
        " and the like.",
    ]
    return "\n".join(out)
