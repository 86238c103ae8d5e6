"""A job of the day: `job.py CHECKOUT OPTIONS` is `examples/emulated_train.py`, but looks at its
card five times a second instead of twenty, as dozens of them share two cores. With `hang` instead
of options, it loads its weights and never computes."""

import sys
from importlib import import_module

TICK_S = 0.2
HUNG_FOR_S = "5000"

name, checkout, *words = sys.argv
sys.path[:0] = [checkout, f"{checkout}/examples"]

from carmad.gpu import emulated_job  # noqa: E402 - of the checkout

emulated_job.TICK_S = TICK_S
if words[0] == "hang":
    emulated_job.main(["--model", "hang", "--memory-mib", words[1], "--warmup", HUNG_FOR_S])
sys.argv = [name, *words]
import_module("emulated_train").main()
