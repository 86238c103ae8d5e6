"""Launchers, which find out themselves what they would start."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.estimators.tracer.test_tracer_script import (
    job,
    loop,
    needs,
    refusal,
    report,
    written,
)

__all__ = ["job"]

TORCH = ("-m", "torch.distributed.run")
ACCELERATE = ("-m", "accelerate.commands.accelerate_cli", "launch")
CHECK = """
import os, sys
told = [sys.argv[1:], *map(os.environ.get, {names})]
assert told == {told}, told
while True: step()
"""
RANKS = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def checks(told: object, *names: str) -> str:
    return loop(CHECK.format(names=names, told=told))


@pytest.mark.parametrize(
    ("words", "world"),
    [
        (["--standalone"], "1"),
        (["--nproc_per_node=4", "--nnodes", "2", "--rdzv-endpoint=h:1"], "8"),
        (["--nproc-per-node", "gpu", "--nnodes=1:4"], "3"),
        (["--nproc-per-node", "auto"], "3"),
    ],
)
def test_torchrun(words: list[str], world: str, job: Path) -> None:
    script = written(job, checks([["--nnodes", "9"], "0", "0", world], *RANKS))
    report(job, *TORCH, *words, script, "--nnodes", "9", gpus=3)


def test_the_older_launcher_and_a_module(job: Path) -> None:
    script = written(job, checks([["--local-rank=0", "-x"], "0", "0", "2"], *RANKS))
    report(job, "-m", "torch.distributed.launch", "--nproc_per_node=2", script, "-x", gpus=2)
    (job.parent / "training.py").write_text(checks([["-x"], "0", "0", "2"], *RANKS))
    report(
        *(job, *TORCH, "--nproc_per_node=2", "-m", "training", "-x"),
        env=(("PYTHONPATH", str(job.parent)),),
    )


@needs("accelerate")
def test_accelerate_launch(job: Path) -> None:
    names = ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION")
    alone = written(job, checks([["-x"], None, "bf16"], *names))
    options = ("--num_processes=1", "--mixed_precision", "bf16")
    report(job, *ACCELERATE, *options, alone, "-x")
    several = written(job, checks([["-x"], "2", "no"], *names))
    report(job, *ACCELERATE, "--multi_gpu", "--num_processes", "2", several, "-x", gpus=2)
    sharded = written(job, checks([[], "2", "true"], "WORLD_SIZE", "ACCELERATE_USE_FSDP"))
    report(job, *ACCELERATE, "--use_fsdp", "--num_processes", "2", sharded, gpus=2)


@needs("accelerate")
def test_accelerates_configuration(job: Path) -> None:
    config = job.parent / "config.yaml"
    config.write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nmixed_precision: fp16\n"
        "num_machines: 1\nnum_processes: 4\nmachine_rank: 0\nuse_cpu: false\n"
    )
    names = ("WORLD_SIZE", "ACCELERATE_MIXED_PRECISION")
    script = written(job, checks([[], "4", "fp16"], *names))
    report(job, *ACCELERATE, "--config_file", str(config), script, gpus=4)


def test_a_launcher_that_starts_nothing(job: Path) -> None:
    assert "its launcher left with status 2" in refusal(job, *TORCH, "--nnodes", "2")
    assert "starts no Python: /bin/true" in refusal(job, *TORCH, "--no-python", "/bin/true")
    assert "only `accelerate launch`" in refusal(job, *ACCELERATE[:-1], "config")
