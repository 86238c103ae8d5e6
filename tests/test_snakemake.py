"""Snakemake, as it is, with `--executor carma`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running
from tests.waiting import until

pytest.importorskip("snakemake")
SNAKEMAKE = str(Path(sys.executable).with_name("snakemake"))

SNAKEFILE = """\
rule all:
    input: "out/a", "out/b"
rule train:
    output: "out/{name}"
    threads: 1
    resources: gpu=1, gpu_mem=4000, mem_mb=900, runtime=10
    shell: "echo {wildcards.name} > {output}"
rule fails:
    output: "bad"
    shell: "echo no such luck >&2; exit 3"
rule lasts:
    output: "late"
    shell: "touch started; sleep 600; touch {output}"
"""


@pytest.fixture(scope="module")
def carmad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Carmad]:
    with running(tmp_path_factory.mktemp("carmad"), **NO_KERNELS) as daemon:
        (daemon.work / "Snakefile").write_text(SNAKEFILE)
        yield daemon


def snakemake(carmad: Carmad, *targets: str) -> subprocess.Popen[str]:
    quick = ["--seconds-between-status-checks", "1", "--latency-wait", "5"]
    return subprocess.Popen(
        [SNAKEMAKE, "--executor", "carma", "-j", "4", *quick, *targets],
        cwd=carmad.work,
        env=carmad.env | {"CARMA_SOCKET": carmad.socket, "PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_rules_are_jobs_with_what_they_ask_for(carmad: Carmad) -> None:
    ran = snakemake(carmad)
    said, _ = ran.communicate()
    assert ran.returncode == 0, said
    assert [(carmad.work / "out" / name).read_text() for name in "ab"] == ["a\n", "b\n"]
    jobs = carmad.get("/v1/history")["jobs"]
    assert {job["name"] for job in jobs} == {"rule-train-1", "rule-train-2"}
    told = carmad.job(jobs[0]["id"])
    assert (told["gpus_wanted"], told["cpus"]) == (1, 1)
    assert (told["host_memory_mib"], told["time_limit_s"]) == (900, 600)
    assert told["memory"]["declared_mib"] == 4000


def test_a_failure_is_told_and_names_the_log(carmad: Carmad) -> None:
    ran = snakemake(carmad, "bad")
    said, _ = ran.communicate()
    assert ran.returncode != 0 and "is failed" in said, said
    log = next((carmad.work / ".snakemake/carma_logs").glob("rule-fails-*.log"))
    assert str(log) in said and "no such luck" in log.read_text()


def test_interrupted_it_cancels_its_jobs(carmad: Carmad) -> None:
    ran = snakemake(carmad, "late")
    until((carmad.work / "started").exists)
    ran.send_signal(signal.SIGINT)
    said, _ = ran.communicate()
    until(lambda: not carmad.get("/v1/jobs")["jobs"])
    last = carmad.get("/v1/history")["jobs"][0]
    assert (last["name"], last["state"]) == ("rule-lasts-0", "cancelled"), said
