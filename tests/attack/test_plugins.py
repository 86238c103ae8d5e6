"""A policy that fails at run time, in a real daemon: jobs continue, and users are told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, ROOT, Carmad, until

# It does as a file says, which the test writes.
MODULE = """
from pathlib import Path
from policies.builtin import magm
MODE = Path(__file__).with_name("mode")

class Moody:
    name = "carma_test_moody"
    def __init__(self, settings):
        self.good = magm(settings)
    def order(self, job):
        self._act()
        return self.good.order(job)
    def plan(self, view):
        self._act()
        return self.good.plan(view)
    def _act(self):
        if MODE.read_text() == "raise":
            raise KeyError("no such thing")
"""
ENTRY_POINTS = "[carma.policies]\ncarma_test_moody = carma_test_moody:Moody\n"


class Moody:
    def __init__(self, folder: Path, fallback: str) -> None:
        self.site = folder / "site"
        info = self.site / "carma_test_moody-1.0.dist-info"
        info.mkdir(parents=True)
        (self.site / "carma_test_moody.py").write_text(MODULE)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: carma-test-moody\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text(ENTRY_POINTS)
        self.be("well")
        chosen = {"CARMA_POLICY": "carma_test_moody", "CARMA_POLICY_FALLBACK": fallback}
        where = {"PYTHONPATH": str(self.site)}
        self.carmad = Carmad(folder, "1xA100-40GB", **chosen, **where, **NO_KERNELS)
        self.carmad.start()

    def be(self, mode: str) -> None:
        draft = self.site / "draft"
        draft.write_text(mode)
        draft.replace(self.site / "mode")

    def troubles(self) -> list[str]:
        found: list[str] = self.carmad.get("/v1/status")["server"]["troubles"]
        return found

    def decided_by(self, id: int) -> str:
        return str(self.carmad.why(id)["policy"])


@pytest.fixture
def moody(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Moody]:
    made = Moody(tmp_path, request.param)
    yield made
    made.carmad.clear_away()


@pytest.mark.parametrize("moody", ["magm"], indirect=True)
def test_the_fallback_takes_over_and_gives_back(moody: Moody) -> None:
    carmad = moody.carmad
    first = carmad.sh("exit 0")
    carmad.ended(first)
    assert moody.decided_by(first) == "carma_test_moody"

    moody.be("raise")
    second = carmad.sh("exit 0")
    assert carmad.ended(second)["state"] == "succeeded"
    why = carmad.why(second)
    assert why["policy"] == "magm"
    assert [ground["code"] for ground in why["grounds"]] == ["policy_fallback"]
    assert moody.troubles() == ["policy carma_test_moody fails: magm decides meanwhile"]
    assert carmad.get("/v1/health")["status"] == "degraded"
    assert "magm decides meanwhile" in carmad.carma("status").splitlines()[0]
    checks = {check["name"]: check for check in carmad.get("/v1/doctor")["checks"]}
    assert checks["policy carma_test_moody"]["ok"] is False
    log = carmad.log.read_text()
    assert log.count("the policy carma_test_moody fails: magm decides meanwhile") == 1
    assert "_act" in log, "and where"

    moody.be("well")

    def is_back() -> bool:
        third = carmad.sh("exit 0")
        carmad.ended(third)
        return moody.decided_by(third) == "carma_test_moody"

    until(is_back, "the policy to be asked again")
    assert moody.troubles() == []
    assert carmad.get("/v1/health")["status"] == "ok"
    assert "the policy carma_test_moody answers again" in carmad.log.read_text()

    carmad.stop()
    (segment,) = sorted((carmad.state / "journal").iterdir())
    env = carmad.env | {"PYTHONPATH": f"{moody.site}{os.pathsep}{ROOT}"}
    argv = [sys.executable, "-m", "lab.replay", str(segment)]
    assert "decisions of carma_test_moody" in subprocess.check_output(argv, env=env, text=True)


@pytest.mark.parametrize("moody", [""], indirect=True)
def test_without_one_jobs_wait_and_everybody_is_told(moody: Moody) -> None:
    carmad = moody.carmad
    moody.be("raise")
    id = carmad.sh("exit 0")
    until(lambda: moody.troubles(), "the policy to have failed")
    assert moody.troubles() == ["policy carma_test_moody fails: no job is started meanwhile"]
    until(lambda: carmad.why(id)["reasons"], "the reason to be known")
    assert [reason["code"] for reason in carmad.why(id)["reasons"]] == ["policy_failed"]
    assert "no job is started meanwhile" in carmad.carma("status").splitlines()[0]
    said = json.dumps(carmad.get("/v1/doctor"))
    assert "KeyError('no such thing')" in said
    assert "policy_fallback" in said
    assert carmad.log.read_text().count("the policy carma_test_moody fails") == 1
    moody.be("well")
    assert carmad.ended(id)["state"] == "succeeded"
