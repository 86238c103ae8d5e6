"""What public scripts do that our own do not: each of these once ended the trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from carmad.plugin import Refusal
from tests.estimators.tracer.test_tracer_script import (
    MIB,
    PARAMETERS,
    job,
    looked,
    loop,
    report,
    written,
)

__all__ = ["job"]

STEPS = "\nfor turn in range(5): step()\n"
SHARDED = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
with torch.device("meta"):
    model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024))
for layer in model:
    fully_shard(layer)
fully_shard(model)
model.to_empty(device="cuda")
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.Adam(model.parameters())
for turn in range(3):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""
TENSOR_PARALLEL = """
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import parallel
mesh = init_device_mesh("cuda", (4,))
model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.Linear(4096, 1024)).cuda()
plan = {"0": parallel.ColwiseParallel(), "1": parallel.RowwiseParallel()}
model = parallel.parallelize_module(model, mesh, plan)
optimizer = torch.optim.Adam(model.parameters())
for turn in range(3):
    model(torch.randn(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def traced(text: str, job: Path) -> dict[str, int]:
    seen = report(job, written(job, loop(text) + STEPS))
    assert seen.steps == 2
    return seen.parts


def test_fsdp_from_the_meta_device_holds_its_share(job: Path) -> None:
    script = written(job, SHARDED)
    command = f"python -m torch.distributed.run --nproc_per_node=2 {script}".split()
    seen = report(job, *command[1:], gpus=2)
    assert seen.steps == 2
    assert seen.parts["optimizer"] == pytest.approx(2 * PARAMETERS / 2, rel=0.05)


def test_tensor_parallel_layers_hold_a_quarter(job: Path) -> None:
    script = written(job, TENSOR_PARALLEL)
    command = f"-m torch.distributed.run --nproc_per_node=4 {script}".split()
    seen = report(job, *command, gpus=4)
    assert seen.steps == 2
    assert seen.parts["parameters"] == pytest.approx(PARAMETERS / 4, rel=0.05)
    assert (
        2 <= seen.parts["optimizer"] / (PARAMETERS / 4) <= 3.1
    )  # with what a step takes meanwhile


def test_a_model_that_torch_jit_records_runs_as_it_is(job: Path) -> None:
    traced("model = torch.jit.trace(model, torch.randn(2, 1024).cuda())", job)


def test_the_old_types_make_tensors_on_the_gpu(job: Path) -> None:
    text = """
        Tensor = torch.cuda.FloatTensor
        kept = Tensor(256, 1024).fill_(1.0), Tensor([[1, 2], [3, 4]]), torch.ones(2).type(Tensor)
        assert kept[0].shape == (256, 1024) and kept[1].shape == (2, 2)
        assert all(isinstance(one, Tensor) and one.is_cuda for one in kept)
        assert not isinstance(kept[0], torch.cuda.LongTensor)
        torch.set_default_tensor_type("torch.cuda.FloatTensor")
        assert torch.empty(3).is_cuda
        """
    assert traced(text, job)["activations"] >= MIB


def test_what_is_on_the_gpu_may_be_shared(job: Path) -> None:
    traced("model.share_memory()", job)


def test_what_nobody_has_written_to_is_zero(job: Path) -> None:
    text = """
        with torch.no_grad():
            for turn in range(5):  # from the third on, it is left out
                chosen = torch.nn.Identity()(torch.empty(8, dtype=torch.long, device="cuda"))
                ['left', 'right'][int(chosen[0].cpu())]
        assert not torch.empty(3, 5).any() and not torch.empty(2000, 1000).normal_().any()
        assert not torch.empty(7, dtype=torch.long, device="cuda").any()
        """
    traced(text, job)


@pytest.mark.parametrize("layer", ["Conv2d(8, 4, 3)", "ConvTranspose2d(8, 4, 3)"])
def test_a_convolution_says_that_its_channels_do_not_fit(layer: str, job: Path) -> None:
    text = f"torch.nn.{layer}.cuda()(torch.randn(1, 3, 32, 32, device='cuda'))"
    answer = looked(job, written(job, loop(text)))
    assert isinstance(answer, Refusal)
    assert "RuntimeError: Given groups=1" in answer.crash
    assert "to have 8 channels, but got 3 channels instead" in answer.crash
