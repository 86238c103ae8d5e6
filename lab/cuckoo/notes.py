"""What the page of `python -m lab.cuckoo` says beside its figures."""

from __future__ import annotations

SETTING = """\
521 jobs of two GPUs each come in 30,000 s to 8 RTX 4090, 2 A100 (80 GB, for the paper's A800) and \
6 A10; models, batch sizes, deadlines and when many jobs come are the paper's (4.1, 4.2, tables 7 \
and 8). Users say how long a job takes, how much memory it needs and what its stages take, all \
rightly.

- **Calibrated** on the paper's rows `Cuckoo` and `None` (nothing packed) is what the paper does \
not print: the durations' mean (by `None`'s mean JCT, seed by seed), their spread (a log-normal σ \
of 0.75, by how many times Cuckoo's JCT `None`'s is) and how much slower the slower GPUs are (by \
Cuckoo's deadlines met). These two rows are no results. All other rows are, and nothing was fitted \
to them. `None` meets fewer deadlines than in the paper: no values of these gave all four figures.
- **Stages** are those of Muri's jobs, with loading and communication as in the paper's table 3 \
(10 ms, and 3.5 ms for every million parameters), and its λ of 2, for the policy and for what \
pairs really come to. On a slower GPU all of an iteration takes longer, by the power 0.6 of the \
ratio of the GPUs' speeds: 2.1 times on an A10, 1.3 on an RTX 4090. Of such ratios the paper says \
"two or even three times".
- **Groups start whole**, as in the paper: `joins = "partner"`, jobs compute from their launch on, \
and the partner follows a second later. Nobody else joins whoever is left. `joins anyone` is \
CARMA's default, on the same jobs.
- **What a pair comes to** is not the policy's own model: each job goes through its own stages, \
nothing keeps them in step, and where both compute, or send, at once they slow each other down by \
λ. This is off by 5 % on measured pairs (below). Together they never do more than the GPU can.

Two more set-ups, for the causes. **Muri's stages**, as measured on two V100, whose loading and \
sending take as long on any GPU, with λ = 1.5, as fitted to Lucid's measured pairs, and σ = 0.6; \
its durations were calibrated on `None` alone, before many jobs came when they do in the paper. \
**Groups in step**: the headline's jobs under an executor like the paper's, in which each job of a \
group does one iteration in a round, and a round takes what the paper's model says.

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
The set-ups above were run for this. Where a claim is not reproduced, its line among \
[the papers' claims](reproduce.md) says what it comes to in the others."""
