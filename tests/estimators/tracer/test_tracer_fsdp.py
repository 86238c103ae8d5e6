"""FSDP2's peak against that of PyTorch's own tracker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.estimators.tracer.test_tracer_following import TORCH
from tests.estimators.tracer.test_tracer_script import MIB, TRACERS, job, report, written

__all__ = ["job"]

MODEL = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

def train(device, mesh):
    with torch.device(device):
        model = nn.Sequential(*(Block(1024) for _ in range(4)))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)

    def step():
        optimizer.zero_grad()
        model(torch.randn(256, 1024, device=device)).sum().backward()
        optimizer.step()

    return model, optimizer, step
"""
OURS = """
mesh = torch.distributed.init_device_mesh("cuda", (4,))
_, _, step = train("cuda", mesh)
for turn in range(2):
    step()
"""
THEIRS = """
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.testing._internal.distributed.fake_pg import FakeStore

torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = torch.distributed.init_device_mesh("cpu", (4,))
with FakeTensorMode():
    model, optimizer, step = train("cpu", mesh)
    step()
    tracker = FSDPMemTracker(model, optimizer)
    with tracker:
        step()
    peak = tracker.get_tracker_snapshot("peak")[torch.device("cpu")]
print(sum(size for kind, size in peak.items() if str(kind) != "Total"))
"""


@pytest.mark.long
def test_the_peak_is_that_of_pytorchs_own_tracker(job: Path) -> None:
    ours = report(job, *TORCH, "--nproc_per_node=4", written(job, MODEL + OURS), gpus=4).floor
    told = job.parent / "told"
    status = TRACERS.run([written(job, MODEL + THEIRS)], str(job), job.parent / "none", told, 120.0)
    if "No module named" in told.read_text():
        pytest.skip("PyTorch has no tracker for FSDP2")
    assert status == 0, told.read_text()
    theirs = int(told.read_text().split()[-1])
    assert theirs > 200 * MIB
    assert ours == pytest.approx(theirs, rel=0.01)
