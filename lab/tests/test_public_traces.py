"""Every public trace, from its file to a report; skipped if the data are not available."""

import io
import json

import pytest
from rich.console import Console

from carma_simulator.experiment import Experiment
from carma_simulator.hardware import parse
from carma_simulator.metrics import bounds, figures
from carma_simulator.report import export, table
from carma_simulator.report.measures import runs
from carma_simulator.run import simulate
from carma_simulator.traces.sources import load
from carmad.config import Settings
from lab.data import DATA
from tests.shared import rarely

SOURCES = [
    ("carma:carma/trace1.csv", "3xA100-40GB"),
    ("carma:carma/heavy60.csv", "4xDGX-Station-A100-40GB"),
    *((f"muri:muri/trace{n}.csv?tasks=150", "8x8xV100-32GB") for n in (1, 2, 3)),
    ("philly:philly/philly.csv?tasks=150", "16x8xV100-32GB"),
    *((f"sia:sia/workloads/philly-workload-{n}.csv", "16x4xA100-40GB") for n in range(1, 7)),
    *(
        (f"sia:sia/workloads/saturn-workload-{n}.csv", "16x4xA100-40GB")
        for n in (1, 2, 3, 4, 5, 6, 10)
    ),
]


@pytest.mark.skipif(not DATA.exists(), reason="the public data are not at ../shared/data")
@pytest.mark.parametrize(("source", "gpus"), rarely(SOURCES[1:], SOURCES[:1]))
def test_from_the_file_to_the_report(source: str, gpus: str) -> None:
    kind, _, path = source.partition(":")
    base = Experiment(load(f"{kind}:{DATA}/{path}"), parse(gpus), Settings(policy="exclusive"))
    outcome = simulate(base)
    found, least = figures(outcome), bounds(outcome)
    assert found.finished == len(base.trace.tasks) > 0
    assert found.jct and least.jct_mean_s and least.unshared_makespan_s and found.makespan_s
    assert found.jct.mean >= least.jct_mean_s * (1 - 1e-9)
    assert found.makespan_s >= least.unshared_makespan_s * (1 - 1e-9)
    assert found.slowdown and found.slowdown.worst == pytest.approx(1.0)
    told = runs([(base, outcome)])
    screen = Console(file=io.StringIO(), width=100)
    screen.print(table.Comparison(told))
    assert "makespan" in screen.file.getvalue()  # type: ignore[attr-defined]
    file = io.StringIO()
    export.write_json(told, file)
    assert json.loads(file.getvalue())
    if source.startswith(("carma", "philly")):  # a page takes seconds
        assert "<svg" in export.page(told) or "data:image/svg" in export.page(told)
