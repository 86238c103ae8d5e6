"""The example of a third-party policy: installed as its users would, found by name, and at work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "carma-policy-example"

PROGRAM = """
from carmad import registry
from carmad.config import Settings
from carmad.core.messages import Discovered, Estimated, Launch, Sampled, Submitted
from carmad.core.scheduler import Scheduler
from carmad.core.types import GpuSample
from carmad.testing import a_gpu, a_spec, check_policy
from recovery import ladder

settings = Settings(policy="least_jobs")
assert "least_jobs" in registry.names("policies")
policy = registry.policy(settings)
assert policy.name == "least_jobs"
check_policy(policy, settings)

scheduler = Scheduler(settings, policy, ladder.exclusive(settings))
gpus = (a_gpu(0), a_gpu(1))
scheduler.handle(Discovered(0.0, gpus))
scheduler.handle(
    Sampled(0.0, tuple(GpuSample(gpu.id, 0.0, 0, gpu.memory_mib, 0.0, 0.0, 0.0) for gpu in gpus))
)
scheduler.handle(Submitted(0.0, 1, (a_spec(), a_spec())))
launched = []
for job in (1, 2):
    step = scheduler.handle(Estimated(0.0, job, None))
    launched += [action.job.gpus for action in step.actions if isinstance(action, Launch)]
assert launched == [(gpus[0].id,), (gpus[1].id,)], launched
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip has put the built package."""
    target = tmp_path_factory.mktemp("site")
    offline = ["--no-index", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *offline]
    subprocess.run([*pip, "--target", target, EXAMPLE], check=True, timeout=120)
    return target


def test_it_is_found_passes_the_checks_and_places_jobs(target: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{target}{os.pathsep}{ROOT}"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=env, cwd=target, check=True, timeout=120)


def test_it_imports_nothing_but_carmad_plugin(target: Path) -> None:
    source = (target / "carma_policy_example.py").read_text()
    assert set(re.findall(r"^from (carmad\S*) import", source, re.MULTILINE)) == {"carmad.plugin"}
    assert "import carmad" not in source
