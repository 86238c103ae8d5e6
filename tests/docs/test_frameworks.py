"""Launchers of frameworks, as they are, in a job of CARMA's: two processes that train on CPUs."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import NO_KERNELS, Carmad, running

TRAINING = """
import torch
data = torch.utils.data.TensorDataset(torch.rand(16, 4))
data = torch.utils.data.DataLoader(data, 4)
net = torch.nn.Linear(4, 1)
"""
LIGHTNING = """
import lightning

class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net
    def training_step(self, batch, _):
        return self.net(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

options = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
trainer = lightning.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=2, **options)
trainer.fit(Net(), data)
if trainer.is_global_zero:
    print("trained by", trainer.world_size, "for", trainer.current_epoch)
"""
ACCELERATE = """
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
net, optimizer, data = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), data)
for (batch,) in data:
    accelerator.backward(net(batch).square().mean())
    optimizer.step()
seen = accelerator.gather(torch.tensor([accelerator.process_index]))
accelerator.print("trained by", seen.tolist())
"""
# gloo's threads sometimes abort a process whose interpreter ends.
END = """
import os, sys
torch.distributed.barrier()
sys.stdout.flush()
os._exit(0)
"""
# PyPI's torchvision is built for CUDA, and its operators cannot be loaded beside a PyTorch without.
# Its Python part, which the frameworks import, needs their names only.
DECLARE = """
from estimators.look import patches
from estimators.tracer import patching
patching.install(patches("torchvision"), None)
"""


@pytest.fixture
def carmad(tmp_path: Path) -> Iterator[Carmad]:
    with running(tmp_path, **NO_KERNELS) as daemon:
        yield daemon


@pytest.mark.long
@pytest.mark.parametrize(
    ("package", "launcher", "code", "said"),
    [
        ("lightning", (), LIGHTNING, "trained by 2 for 2"),
        (
            "accelerate",
            (
                "-m",
                "accelerate.commands.accelerate_cli",
                "launch",
                "--multi_gpu",
                "--num_processes=2",
            ),
            ACCELERATE,
            "trained by [0, 1]",
        ),
    ],
    ids=["lightning", "accelerate"],
)
def test_a_launcher_trains_in_a_job(
    carmad: Carmad, tmp_path: Path, package: str, launcher: tuple[str, ...], code: str, said: str
) -> None:
    if not importlib.util.find_spec(package):
        pytest.skip(f"no {package}")
    (tmp_path / "sitecustomize.py").write_text(DECLARE)
    script = tmp_path / "train.py"
    script.write_text(TRAINING + code + END)
    program = ["env", f"PYTHONPATH={tmp_path}", sys.executable, *launcher, str(script)]
    asked = ("--gpus", "2", "--gpu-mem", "2G", "--cpus", "2")
    id = int(carmad.carma("submit", "--parsable", *asked, "--", *program))
    carmad.carma("wait", str(id), rc=None)
    logs = carmad.carma("logs", str(id))
    assert carmad.job(id)["state"] == "succeeded", logs
    assert said in logs


MEET = """
import os, pathlib, time
torch.distributed.init_process_group("gloo")
pathlib.Path("at-work-" + os.environ["CARMA_JOB_ID"]).touch()
while len(list(pathlib.Path().glob("at-work-*"))) < 2:
    time.sleep(0.05)
print(f"rank {torch.distributed.get_rank()} of {torch.distributed.get_world_size()}")
"""


@pytest.mark.long
def test_two_torchruns_do_not_meet_at_one_port(carmad: Carmad, tmp_path: Path) -> None:
    """Nor does a script that runs alone take itself for one of several processes."""
    if not importlib.util.find_spec("torch"):
        pytest.skip("no torch")
    script = tmp_path / "train.py"
    script.write_text("import torch\n" + MEET + END)
    launch = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script))
    asked = ("--anyway", "--gpus", "0", "--cpus", "1")
    ids = [int(carmad.carma("submit", "--parsable", *asked, "--", *launch)) for _ in range(2)]
    for id in ids:
        carmad.carma("wait", str(id), rc=None)
        logs = carmad.carma("logs", str(id))
        assert carmad.job(id)["state"] == "succeeded", logs
        assert "rank 0 of 2" in logs and "rank 1 of 2" in logs
    alone = "import torch; print(torch.distributed.is_torchelastic_launched(), end='')"
    code = f"{alone}; import os; print({{'RANK', 'WORLD_SIZE', 'MASTER_ADDR'}} & os.environ.keys())"
    id = int(carmad.carma("submit", "--parsable", *asked, "--", sys.executable, "-c", code))
    carmad.carma("wait", str(id))
    assert "Falseset()" in carmad.carma("logs", str(id))
