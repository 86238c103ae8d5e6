"""What a package outside the tree says of submissions, by `carma.submissions`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, run_carmad, running

PACKAGE = '''
from dataclasses import replace
from carmad.plugin import Allocation, CarmaError, Checked, SubmissionCheck

class House(SubmissionCheck):
    """No secrets in comments, and one job of this name at a time."""

    def __init__(self, host):
        self.here, self.policy = host.state_dir, host.settings().policy

    def allocation(self, pid):
        return Allocation("Slurm", 7) if (self.here / "allocated").exists() else None

    def check(self, spec):
        if spec.name == "clumsy":
            raise KeyError("a bug in a check")
        if spec.name == "odd":
            return spec
        if spec.comment == "secret":
            raise CarmaError("comments have no secrets here", "Leave --comment out.")
        checked = Checked(replace(spec, comment=f"{self.policy} {spec.gpus}"))
        return replace(checked, condition=alone) if spec.name == "alone" else checked

def alone(others):
    if any(each.name == "alone" for each in others):
        raise CarmaError("one job of this name at a time", "Wait for it.")

def nothing(host):
    return None

def broken(host):
    raise KeyError("no such thing")
'''


def installed(folder: Path, declared: str) -> str:
    """The folder of the package, as pip leaves it."""
    site = folder / "site"
    about = site / "house_rules-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "house_rules.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: house-rules\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[carma.submissions]\n{declared}\n")
    return str(site)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    folder = tmp_path_factory.mktemp("carmad")
    site = installed(folder, "house = house_rules:House\nidle = house_rules:nothing")
    with running(folder, PYTHONPATH=site, **NO_KERNELS) as carmad:
        yield carmad


def refusal(daemon: Carmad, **fields: object) -> tuple[str, str]:
    status, out = daemon.call("POST", "/v1/jobs", daemon.submission("true", **fields))
    assert status == 400
    return out["error"], out["hint"]


def test_a_submission_is_completed(daemon: Carmad) -> None:
    id = daemon.submit("true", gpus=0, comment="mine")
    assert daemon.job(id)["comment"] == "magm 0"
    first = daemon.submit("true", gpus=0, array={"indices": [0, 1]})
    assert daemon.job(first + 2)["comment"] == "magm 0", "each task"


def test_a_submission_is_refused_and_so_is_its_rehearsal(daemon: Carmad) -> None:
    said = ("comments have no secrets here", "Leave --comment out.")
    assert refusal(daemon, comment="secret") == said
    assert refusal(daemon, comment="secret", dry_run=True) == said
    told = daemon.carma("run", "--comment", "secret", "true", rc=1)
    assert said[0] in told and said[1] in told


def test_a_process_may_be_part_of_another_systems_allocation(daemon: Carmad) -> None:
    mark = daemon.state / "allocated"
    mark.touch()
    cgroup = daemon.carma("run", "-t", "1", "--quiet", "cat", "/proc/self/cgroup")
    mark.unlink()
    (job,) = daemon.get("/v1/jobs?slurm_job=7&states=succeeded")["jobs"]
    assert job["slurm_job"] == 7
    assert cgroup == Path("/proc/self/cgroup").read_text()


def test_of_submissions_at_once_one_meets_a_condition(daemon: Carmad) -> None:
    body = daemon.submission("true", name="alone", held=True)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: daemon.call("POST", "/v1/jobs", body), range(8)))
    taken = [out["id"] for status, out in answers if status == 201]
    assert len(taken) == 1
    assert {out["error"] for status, out in answers if status != 201} == {
        "one job of this name at a time"
    }
    daemon.cancel(taken[0])
    daemon.ended(taken[0])
    assert daemon.submit("true", name="alone", held=True)


def test_a_check_that_fails_lets_nothing_pass(daemon: Carmad) -> None:
    error, _ = refusal(daemon, name="clumsy")
    assert error == "the check house_rules.House of submissions fails: KeyError('a bug in a check')"
    assert "KeyError" in daemon.log.read_text()
    error, _ = refusal(daemon, name="odd")
    assert error.startswith("the check house_rules.House of submissions fails: TypeError")


@pytest.mark.parametrize("value", ["house_rules:broken", "nowhere:check"])
def test_without_an_installed_check_no_daemon_starts(tmp_path: Path, value: str) -> None:
    site = installed(tmp_path, f"house = {value}")
    where = ("--emulated", "1xA100-40GB", "--state-dir", str(tmp_path / "state"))
    ran = run_carmad(*where, "--socket", str(tmp_path / "sock"), PYTHONPATH=site)
    assert ran.returncode != 0
    assert "'house' of submissions cannot be loaded" in ran.stderr
