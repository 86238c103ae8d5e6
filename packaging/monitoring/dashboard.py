"""Writes the Grafana dashboard from the table below: `python packaging/monitoring/dashboard.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("carma-dashboard.json")
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'instance=~"$instance"'
WIDTH = 24  # of Grafana's grid


@dataclass(frozen=True)
class Panel:
    """`series`: a legend for each expression, in which HERE is what chooses the server."""

    title: str
    unit: str
    series: dict[str, str]
    width: int = 12
    kind: str = "timeseries"
    stacked: bool = False
    most: float | None = None  # of the axis


def _percentile(share: float, metric: str, *by: str) -> str:
    labels = ", ".join(("le", *by))
    return f"histogram_quantile({share}, sum by ({labels}) (rate({metric}_bucket{{{HERE}}}[1h])))"


GPU = "GPU {{gpu}}"
ROWS: dict[str, tuple[Panel, ...]] = {
    "Now": (
        Panel("Daemon up", "short", {"": f"min(carma_up{{{HERE}}})"}, 4, "stat"),
        Panel("Running", "short", {"": f'sum(carma_jobs{{{HERE}, state="running"}})'}, 4, "stat"),
        Panel("Queue", "short", {"": f"sum(carma_queue_length{{{HERE}}})"}, 4, "stat"),
        Panel(
            "Longest wait", "s", {"": f"max(carma_queue_longest_wait_seconds{{{HERE}}})"}, 4, "stat"
        ),
        Panel(
            "GPUs out of use",
            "short",
            {
                "": f"sum(clamp_max(carma_gpu_faulty{{{HERE}}} + carma_gpu_drained{{{HERE}}}"
                f" + carma_gpu_stale{{{HERE}}}, 1))"
            },
            *(4, "stat"),
        ),
        Panel(
            "Energy, 24 h",
            "joule",
            {"": f"sum(increase(carma_gpu_energy_joules_total{{{HERE}}}[24h]))"},
            *(4, "stat"),
        ),
    ),
    "GPUs": (
        Panel("Memory in use", "bytes", {GPU: f"carma_gpu_memory_used_bytes{{{HERE}}}"}),
        Panel(
            "Memory promised to jobs", "bytes", {GPU: f"carma_gpu_memory_promised_bytes{{{HERE}}}"}
        ),
        Panel("SM activity", "percentunit", {GPU: f"carma_gpu_sm_active_ratio{{{HERE}}}"}, most=1),
        Panel(
            "SM occupancy", "percentunit", {GPU: f"carma_gpu_sm_occupancy_ratio{{{HERE}}}"}, most=1
        ),
        Panel(
            "DRAM activity", "percentunit", {GPU: f"carma_gpu_dram_active_ratio{{{HERE}}}"}, most=1
        ),
        Panel(
            "Utilization", "percentunit", {GPU: f"carma_gpu_utilization_ratio{{{HERE}}}"}, most=1
        ),
        Panel("Jobs on each GPU", "short", {GPU: f"carma_gpu_jobs{{{HERE}}}"}, stacked=True),
        Panel(
            "Memory of external processes",
            "bytes",
            {GPU: f"carma_gpu_memory_external_bytes{{{HERE}}}"},
        ),
        Panel("Power", "watt", {GPU: f"carma_gpu_power_watts{{{HERE}}}"}, stacked=True),
        Panel("Temperature", "celsius", {GPU: f"carma_gpu_temperature_celsius{{{HERE}}}"}),
        Panel(
            "Wrong with a GPU that works",
            "short",
            {f"{GPU}: {{{{condition}}}}": f"carma_gpu_condition{{{HERE}}}"},
            stacked=True,
        ),
    ),
    "Jobs": (
        Panel("Jobs by state", "short", {"{{state}}": f"carma_jobs{{{HERE}}}"}, stacked=True),
        Panel(
            "Jobs ended per hour",
            "short",
            {"{{outcome}}": f"increase(carma_jobs_ended_total{{{HERE}}}[1h])"},
            stacked=True,
        ),
        Panel(
            "Wait before the start",
            "s",
            {
                "half": _percentile(0.5, "carma_job_wait_seconds"),
                "19 of 20": _percentile(0.95, "carma_job_wait_seconds"),
            },
        ),
        Panel(
            "Out of GPU memory per hour",
            "short",
            {
                "{{outcome}}": f"increase(carma_ooms_total{{{HERE}}}[1h])",
                "then succeeded": f"increase(carma_jobs_recovered_total{{{HERE}}}[1h])",
            },
        ),
        Panel(
            "Estimated over measured memory, median",
            "percentunit",
            {"{{estimator}}": _percentile(0.5, "carma_estimate_ratio", "estimator")},
        ),
        Panel(
            "Memory of each job (with metrics.jobs)",
            "bytes",
            {
                "{{job_id}} of {{user}}, " + GPU: f"carma_job_memory_used_bytes{{{HERE}}}",
            },
            stacked=True,
        ),
        Panel(
            "Jobs by user (with metrics.users)",
            "short",
            {"{{user}}, {{state}}": f"carma_user_jobs{{{HERE}}}"},
            stacked=True,
        ),
    ),
    "Daemon": (
        Panel(
            "Step and commit, 19 of 20 take at most",
            "s",
            {
                "step": _percentile(0.95, "carma_step_duration_seconds"),
                "commit": _percentile(0.95, "carma_commit_duration_seconds"),
            },
        ),
        Panel(
            "How long threads have been at their work",
            "s",
            {"{{thread}}": f"carma_thread_work_age_seconds{{{HERE}}}"},
        ),
        Panel(
            "Failed steps per hour",
            "short",
            {"failed": f"increase(carma_steps_failed_total{{{HERE}}}[1h])"},
        ),
        Panel(
            "Memory and database",
            "bytes",
            {
                "memory": f'process_resident_memory_bytes{{{HERE}, job="carma"}}',
                "database": f"carma_database_size_bytes{{{HERE}}}",
            },
        ),
        Panel("Free disk", "bytes", {"free": f"carma_disk_free_bytes{{{HERE}}}"}),
    ),
}


def _panel(panel: Panel, id: int, x: int, y: int) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.most is not None:
        defaults["max"] = panel.most
    options: dict[str, Any] = {}
    if panel.kind == "timeseries":
        stacking = {"mode": "normal" if panel.stacked else "none", "group": "A"}
        fill = 30 if panel.stacked else 0
        defaults["custom"] = {"stacking": stacking, "fillOpacity": fill, "showPoints": "never"}
        legend = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
        options = {"legend": legend, "tooltip": {"mode": "multi", "sort": "desc"}}
    else:
        calcs = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        options = {"reduceOptions": calcs, "colorMode": "none", "graphMode": "area"}
    targets = [
        {"refId": chr(ord("A") + n), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for n, (legend, expr) in enumerate(panel.series.items())
    ]
    return {
        "id": id,
        "type": panel.kind,
        "title": panel.title,
        "datasource": SOURCE,
        "gridPos": {"h": 8 if panel.kind == "timeseries" else 4, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


def panels() -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        at = {"h": 1, "w": WIDTH, "x": 0, "y": y}
        made.append(
            {"id": len(made) + 1, "type": "row", "title": title, "gridPos": at}
            | {"collapsed": False, "panels": []}
        )
        x, y, height = 0, y + 1, 0
        for panel in row:
            if x + panel.width > WIDTH:
                x, y = 0, y + height
            made.append(_panel(panel, len(made) + 1, x, y))
            height = made[-1]["gridPos"]["h"]
            x += panel.width
        y += height
    return made


def dashboard() -> dict[str, Any]:
    source = {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Source"}
    instance = {
        "name": "instance",
        "type": "query",
        "label": "Server",
        "datasource": SOURCE,
        "query": "label_values(carma_up, instance)",
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }
    return {
        "uid": "carma",
        "title": "CARMA",
        "tags": ["gpu"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [source, instance]},
        "annotations": {"list": []},
        "panels": panels(),
    }


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
