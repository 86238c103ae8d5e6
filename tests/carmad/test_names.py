"""What a job is called that was given no name."""

from __future__ import annotations

import shlex

import pytest

from carmad.readable import job_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("./train.sh --lr 1", "train.sh"),
        ("python train.py", "train.py"),
        ("/usr/bin/python3.11 -u src/train.py --lr 2", "train.py"),
        ("python -W ignore -X dev train.py", "train.py"),
        ("python -m package.train --lr 2", "package.train"),
        ("python -um package.train", "package.train"),
        ("python -c 'open(\"/data/x/y\")'", "python"),
        ("python -uc 'import a; a.b(\"/x\")'", "python"),
        ("bash -lc 'cd /data/run && python train.py'", "bash"),
        ("bash -e run.sh", "run.sh"),
        ("sh", "sh"),
        ("torchrun --nproc_per_node 2 train.py --epochs 3", "train.py"),
        ("torchrun --nproc-per-node=2 --master_port 29500 src/train.py", "train.py"),
        ("torchrun --nproc_per_node 2 -m package.train", "package.train"),
        ("torchrun --nproc_per_node 2 --module package.train", "package.train"),
        ("accelerate launch --num_processes 2 --config_file a.yaml train.py", "train.py"),
        ("deepspeed --num_gpus 2 train.py", "train.py"),
        ("torchrun --nproc_per_node 2 --no-python prog", "torchrun"),
        ("nvidia-smi -l 2", "nvidia-smi"),
    ],
)
def test_a_job_is_called_after_its_script(command: str, name: str) -> None:
    assert job_name(shlex.split(command)) == name
