"""What the page of `python -m lab.cuckoo` says beside its figures."""

from __future__ import annotations

SETTING = """\
521 jobs of two GPUs each come in 30,000 s to 2 A100 (80 GB, for the paper's A800), 8 RTX 4090 and \
6 A10; models, batch sizes and deadlines are the paper's (4.1, tables 7 and 8). Users say how long \
a job takes, how much memory it needs and what its stages take, all rightly.

- **Durations** are not published. They are log-normal; their spread and, for each seed, their \
mean were calibrated on the variant that packs nothing (`None`), to table 1's deadlines met and \
mean JCT. So `None`'s own two figures are no result, and everybody's ratio to Cuckoo is.
- **Stages** are Muri's, measured on two V100 (`lab/cuckoo/workload.py` has what was \
added); or, in the second setting, with loading and communication as in the paper's table 3 \
(10 ms, and 3.5 ms for every million parameters).
- **Groups start whole**, as in the paper: `joins = "partner"`, jobs compute from their launch on, \
and the partner follows a second later. Nobody else joins whoever is left. `joins anyone` is \
CARMA's default, on the same jobs.
- **What a pair comes to** is never the policy's own model: each job goes through its own stages, \
nothing keeps them in step, and where both compute, or send, at once they slow each other down by \
λ (GPU 1.5, fitted to Lucid's measured pairs; network 2). That is off by 5 % on measured pairs \
(below).

The variants are CARMA's policy with other parts put in. Muri's executor, which preempts all jobs \
and packs up to four, is not rebuilt; the order of its groups is taken for first in, first out. \
CARMA's `fifo`, `sjf` and `magm` are on the same jobs."""

WEIGHTS = """\
w = 0.6 is Cuckoo, w = 1 its variant Blossom. With w = 0 jobs are matched by deadlines alone, if \
packing them gains anything at all."""

PREDICTED = """\
Of all seeds: what a job's start was planned to come to, and what came of it. Durations are known \
exactly, so only the pairs' slow-down can make a plan wrong."""

PAIRS = """\
λ of the GPU is fitted on the pairs of half of the models and the errors are those on the pairs of \
the other half, ten times. A pair's throughput is the sum of both speeds, relative to alone, which \
is what equation 1 predicts. `iterations alike`: only pairs whose iterations differ by a quarter \
at most. `made even`: as CARMA uses the models, as if iterations took both as long. `free \
running` is the simulated truth above; `GPU shares` no more than 1 + (λ − 1) · u₁ · u₂ for the \
slow-down, where u is the share of its time that a job computes.

On Lucid's pairs the paper's model is better than Muri's by about as much as in the paper, and \
both are far off, because nothing there keeps two jobs in step: a stage of one does not wait for a \
stage of the other. Whoever drops that assumption is off by 5 %, with one λ. Gavel's pairs are \
told apart by the model's name only: its ResNet-18 trains on CIFAR-10 and A3C on one CPU, which is \
not what Muri measured under these names, and no model does well."""

CAUSES = """\
- **Muri's jobs load.** Six of its eight models spend more than half of an iteration loading. \
Loading disturbs nobody (the paper's own assumption), so nearly every pair runs at nearly full \
speed and packing nearly doubles what gets done. The paper's packing gained 7 % of JCT (table 1, \
Muri) to 44 % (table 12). The second setting tests this: its jobs load for 10 ms and send more.
- **Nothing keeps jobs in step.** In the paper's model a group goes through its stages together; \
its error on measured pairs is below, beside that of a model without that assumption.
- **GPUs differ less.** Loading takes as long on any GPU. The paper's homogeneous variants take \
all GPUs for RTX 4090, ours for the first kind, A100."""
