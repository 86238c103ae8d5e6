"""Stands in for a training script on a machine without GPUs.

    carma submit --gpus 1 python examples/emulated_train.py --model resnet50 --memory-mib 7110

Run it without arguments for a ten-second job; `carmad/gpu/emulated_job.py` lists the arguments.
"""

from __future__ import annotations

from carmad.gpu.emulated_job import main

if __name__ == "__main__":
    main()
