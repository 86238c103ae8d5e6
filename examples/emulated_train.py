"""Stands in for a training script on a machine without GPUs.

    carma submit --gpu-mem 8G python3 examples/emulated_train.py --memory-mib 7110 --seconds 60

It holds memory on an emulated GPU and keeps it busy, shares it with other jobs at the price of some
speed, prints its steps and loss, and fails with PyTorch's message when memory runs out. It needs
neither packages nor CARMA's environment: any Python from 3.8 on runs it, in any virtual or conda
environment. The emulated GPUs are those of `carma daemon start --emulated 3xA100-40GB`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # CARMA need not be installed here

from carmad.gpu import emulated_job


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("--model", default="resnet50", help="a name to print (default: %(default)s)")
    option("--memory-mib", type=int, default=4000, help="memory on each GPU (default: %(default)s)")
    option("--grow", type=int, default=0, metavar="MIB", help="leak this much, five times")
    option("--load", type=float, default=0.6, help="SM activity when alone, 0-1 (default: 0.6)")
    option("--dram", type=float, default=0.2, help="DRAM activity when alone (default: 0.2)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--seconds", type=float, default=10.0, help="of work alone (default: 10)")
    length.add_argument("--steps", type=int, help="instead of seconds: of 0.1 s when alone")
    given = parser.parse_args()
    seconds = given.steps * emulated_job.STEP_S if given.steps else given.seconds
    words = ["--model", given.model, "--memory-mib", str(given.memory_mib)]
    words += ["--grow", str(given.grow), "--sm", str(given.load), "--dram", str(given.dram)]
    emulated_job.main([*words, "--seconds", str(seconds)])


if __name__ == "__main__":
    main()
