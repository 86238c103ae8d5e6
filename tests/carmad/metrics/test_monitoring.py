"""The alert rules and the Grafana dashboard that are shipped."""

from __future__ import annotations

import itertools
import json
import re
import runpy
import subprocess
from pathlib import Path
from typing import Any

import pytest

from carmad.metrics.declared import METRICS
from tests.carmad.metrics.test_metrics_served import needs
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "packaging/monitoring"
RULES = FOLDER / "carma.rules.yml"
DASHBOARD = FOLDER / "carma-dashboard.json"
RULE_TESTS = ROOT / "tests/carma.rules.test.yml"
OTHERS = {"up", "process_resident_memory_bytes"}
PARTS = ("_bucket", "_count", "_sum")


def promtool(*words: object) -> str:
    ran = subprocess.run(
        ["promtool", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def known() -> set[str]:
    """The names of all series that a daemon has."""
    plain = {each.name for each in METRICS if each.kind != "histogram"}
    return OTHERS | plain | {f"{m.name}{part}" for m in METRICS for part in PARTS if m.buckets}


def used(expr: str) -> set[str]:
    bare = re.sub(r'"[^"]*"', "", expr)
    return set(re.findall(r"\b(?:carma_\w+|process_\w+|up\b)", bare))


# -- rules


@needs("promtool")
def test_the_rules_are_valid_and_fire_when_they_should() -> None:
    assert "12 rules found" in promtool("check", "rules", RULES)
    assert "SUCCESS" in promtool("test", "rules", RULE_TESTS)


def test_every_rule_is_tested_says_what_to_do_and_is_about_what_there_is() -> None:
    text, tests = RULES.read_text(), RULE_TESTS.read_text()
    for block in text.split("      - alert: ")[1:]:
        name = block.split()[0]
        assert f'alertname="{name}"' in tests, name
        assert re.search(r"severity: (critical|warning|info)\b", block), name
        assert "summary: " in block, name
        assert "description: " in block, name
        (expr,) = re.findall(r"^ +expr: (.*)$", block, re.MULTILINE)
        assert used(expr), name
        assert used(expr) <= known(), name


# -- dashboard


def written() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return made


def test_the_dashboard_is_as_its_table_says() -> None:
    made = runpy.run_path(str(FOLDER / "dashboard.py"))["text"]()
    assert DASHBOARD.read_text() == made, "run: .venv/bin/python packaging/monitoring/dashboard.py"


def test_its_panels_have_places_of_their_own_and_units() -> None:
    panels = written()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = set(
            itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"]))
        )
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["targets"], panel["title"]


def expressions() -> list[str]:
    panels = written()["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_it_shows_what_there_is_of_the_server_that_is_chosen() -> None:
    shown: set[str] = set()
    for expr in expressions():
        assert used(expr), expr
        assert used(expr) <= known(), expr
        assert len(re.findall(r"\b(?:carma|process)_\w+\{", expr)) == expr.count('"$instance"')
        shown |= used(expr)
    of_gpus = {m.name for m in METRICS if m.name.startswith("carma_gpu_") and m.kind == "gauge"}
    assert of_gpus - shown == {"carma_gpu_info", "carma_gpu_memory_size_bytes"}


@needs("promtool")
def test_prometheus_understands_every_expression(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": expr.replace("$instance", ".*")}
        for n, expr in enumerate(expressions())
    ]
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


def test_grafanas_own_schema_has_every_field_of_it() -> None:
    """By the classes that Grafana generates from its schema: unknown fields are lost there."""
    models = pytest.importorskip("grafana_foundation_sdk.models.dashboard")
    from grafana_foundation_sdk.cog import encoder, plugins

    plugins.register_default_plugins()
    given = written()
    back = json.loads(encoder.JSONEncoder().encode(models.Dashboard.from_json(given)))
    assert lost(given, back) == []


def lost(given: Any, back: Any, at: str = "$") -> list[str]:
    """What of `given` is not in `back`."""
    if isinstance(given, dict) and isinstance(back, dict):
        gone = [f"{at}.{key}" for key in given.keys() - back.keys()]
        both = [(f"{at}.{key}", given[key], back[key]) for key in given.keys() & back.keys()]
    elif isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        gone = []
        pairs = enumerate(zip(given, back, strict=True))
        both = [(f"{at}[{n}]", one, other) for n, (one, other) in pairs]
    else:
        return [] if given == back else [at]
    return gone + [each for where, one, other in both for each in lost(one, other, where)]
