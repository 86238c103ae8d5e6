"""The example of a third-party policy: installed like a user would, found by name, and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "carma-policy-example"
SEE_IT_AT_WORK = (ROOT / "docs" / "plugins.md").read_text().partition("## See it at work")[2]
AT_WORK = SEE_IT_AT_WORK.split("```python\n")[1].split("```")[0]

FOUND = """
from carmad import registry
from carmad.config import Settings
from carma_testing import check_policy

settings = Settings(policy="least_jobs")
assert "least_jobs" in registry.names("policies")
policy = registry.bare_policy(settings)
assert policy.name == "least_jobs"
check_policy(policy, settings)
"""

SETTINGS = """
import sys
from pathlib import Path
from carmad import configfile, registry
from carmad.api.reasons import phrase, short
from carmad.config import Settings
from carmad.core.placing.decision import Reason
from carmad.errors import CarmaError

def refused(read, *words):
    try:
        read()
    except CarmaError as error:
        assert all(word in str(error) + error.hint for word in words), (str(error), error.hint)
    else:
        raise AssertionError(words)

file = Path("carma.toml")
table = "[policies.least_jobs]\\nmost_jobs = 2\\nmin_free_mib = 7\\n"
file.write_text(f"policy = 'least_jobs'\\n{table}")
settings = configfile.load(file, {})
made = registry.bare_policy(settings)
assert (made.most_jobs, made.min_free_mib) == (2, 7)
assert "[policies.least_jobs]\\nmin_free_mib = 7  # file\\n" in configfile.dump(settings)
assert "\\nmost_jobs = 2  # file\\n" in configfile.dump(settings)
assert "\\n[policies.least_jobs]\\nmost_jobs = 4\\n" in configfile.dump(Settings())

environ = {"CARMA_POLICIES__LEAST_JOBS__MOST_JOBS": "3"}
assert registry.bare_policy(configfile.load(file, environ)).most_jobs == 3
tuned = configfile.change(settings, ["policies.least_jobs.most_jobs=5"])
assert registry.bare_policy(tuned).most_jobs == 5

file.write_text("[policies.least_jobs]\\nmost_jobs = '2'\\n")
refused(lambda: configfile.load(file, {}), "most_jobs should be a valid integer", "default is 4")
file.write_text("[policies.least_jobs]\\nmost_job = 2\\n")
refused(lambda: configfile.load(file, {}), "is not a setting", "policies.least_jobs.most_jobs?")
few = "policies.least_jobs.most_jobs=few"
refused(lambda: configfile.change(settings, [few]), "--set", "valid integer")

crowded = Reason("crowded", 4, 5, "jobs")
assert phrase(crowded) == "has 5 jobs, and least_jobs allows 4"
assert short(crowded, "GPU1") == "Crowded: GPU1"
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pip installed the package."""
    target = tmp_path_factory.mktemp("site")
    offline = ["--no-index", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", *offline]
    subprocess.run([*pip, "--target", target, EXAMPLE], check=True, timeout=PATIENCE_S)
    return target


@pytest.mark.parametrize(
    "program",
    [FOUND, AT_WORK, SETTINGS],
    ids=["plugin", "at work, as documented", "settings and reasons"],
)
def test_it_is_found_and_works(target: Path, tmp_path: Path, program: str) -> None:
    env = {**os.environ, "PYTHONPATH": f"{target}{os.pathsep}{ROOT}"}
    subprocess.run(
        [sys.executable, "-c", program], env=env, cwd=tmp_path, check=True, timeout=PATIENCE_S
    )


def test_it_imports_nothing_but_carmad_plugin(target: Path) -> None:
    source = (target / "carma_policy_example.py").read_text()
    assert set(re.findall(r"^from (carmad\S*) import", source, re.MULTILINE)) == {"carmad.plugin"}
    assert "import carmad" not in source
