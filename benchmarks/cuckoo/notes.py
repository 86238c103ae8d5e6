"""What the page of `python -m benchmarks.cuckoo` says beside its figures."""

from __future__ import annotations

from collections.abc import Mapping

SETTING = """\
521 jobs of two GPUs each come in 30,000 s to 2 A100 (80 GB, for the paper's A800), 8 RTX 4090 and \
6 A10; models, batch sizes and deadlines are the paper's (4.1, tables 7 and 8). Muri's stage times \
on two V100 stand for its profiles (`benchmarks/cuckoo/workload.py` has what was added to them). \
Durations are not published. They are log-normal (σ = 1); their mean was set once, so that CARMA's \
`fifo`, with every job alone, has table 1's mean JCT. With that it keeps fewer deadlines than \
table 1 says: one number cannot meet both. Users say how long a job takes and how much memory it \
needs, both rightly, and what its stages take.

What a packed pair comes to is never the policy's own model:

- `free running`, the headline: each job goes through its own stages, nobody keeps them in step, \
and where both compute, or send, at once they slow each other down by λ (GPU 1.5, fitted to \
Lucid's measured pairs; network 2). It is the headline as it knows of loading and of the network, \
as the policy does, and is off by 5 % on measured pairs (below).
- `learned`: the simulator's own model, also fitted to Lucid's pairs, of which it explains two \
fifths of the variance. It knows of nothing but what both ask of the GPU.

Two more workloads show what hangs on the stages: durations twice as long, a load at which even \
packed jobs queue; and loading and communication as in the paper's table 3 (10 ms, and 3.5 ms for \
every million parameters), with a mean duration set anew in the same way.

The variants are CARMA's policy with other parts put in. All of them keep CARMA's rules: a job \
joins another one that runs, and only when that has shown its first kernel and settled; nobody is \
preempted. Muri's executor, which preempts all jobs and packs up to four, is not rebuilt."""

WEIGHTS = """\
w = 0.6 is Cuckoo, w = 1 its variant Blossom. With w = 0 jobs are matched by deadlines alone, if \
packing them gains anything at all. The weight hardly matters here: it decides who is paired in \
line, and most starts are joins, which the plan decides."""

PREDICTED = """\
Of all seeds, at both loads. What a job's start is planned to come to, beside what came of it. \
Durations are known exactly here, so that only the pairs' slow-down, and who joins later, can make \
a plan wrong: the models overstate how much jobs slow each other down, and what they promise is \
kept."""

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

PLANS = """\
Processor time of whole plans, with all jobs submitted at once. `weight lost` is what the matching \
of the pruned graph has less than that of the full one."""

CAUSES = """\
- **Muri's jobs load.** Six of its eight models spend more than half of an iteration loading, \
A2C, DQN and ResNet18 nearly all of it. Loading disturbs nobody (the paper's own assumption), so \
nearly every pair runs at nearly full speed, twice as much gets done, and at the headline's load \
with any packing the queue is all but gone: between policies that pack, little is left to be \
gained. In the paper packing by efficiency gained only 7 % of JCT (table 1), so its jobs must \
have disturbed each other much more. Its table 3 has 10 ms of loading and 98 or 363 ms of \
communication.
- **Nothing keeps jobs in step.** In the paper's model a group goes through its stages together, \
and two jobs never load at the same time: two that mostly load are foretold an efficiency of 1.1 \
to 1.2. Running free they come to 1.9. So pairs of the best kind are left out, and with a model \
that knows better (`by GPU shares`) the mean JCT is 5 to 11 % shorter.
- **Joining is part of the plan.** In the paper a group starts whole, on GPUs that are idle, and \
nobody joins who is left of it. Here a place beside any job that runs alone is a slot of the \
plan, at the cost of equations 13 and 14 for both, and most starts are of this kind (of the first \
seed 58 % at the headline's load, and 98 % at twice that). So GPUs are seldom used by one job \
alone while others wait, and whoever would be late goes first: nearly all deadlines are kept even \
at twice the load, where the orders that the paper compares with (Muri, FIFO, None) keep about as \
many as in the paper. And so it matters little who was paired with whom in line (Muri-Hetero, \
Muri-P, Blossom, w): whoever waits longer joins somebody else.
- **Planning is what matters.** First in, first out (so Muri here, too) keeps four deadlines in \
ten at twice the load. Earliest deadline first keeps as many as the least cost, at a longer JCT: \
of jobs that all have time enough the least cost lets the short ones join first.
- **What the least cost prefers.** Equation 13 counts every group in an order as an average one: \
without deadlines no order is better than another, and short jobs do not go first. Equation 14 \
gives the slots to whom they still help. So nearly all deadlines are kept without any packing \
where that is possible (`None`, headline); where it is not, jobs become late one after the other, \
and shortest job first keeps far more (durations twice as long). Long jobs pay for what deadlines \
gain, as in the paper: the 99th percentile is longer than under first in, first out.
- **GPUs differ less.** Loading takes as long on any GPU, so that kinds matter less to most of \
these jobs: homogeneous variants lose no deadlines, and of JCT about what they do in the paper. \
The paper's takes all GPUs for RTX 4090, ours for the first kind, A100.
- **Deadlines are kind to short-first orders.** They are in proportion to durations, which are \
spread (σ = 1) and known."""

FITTED = "the mean duration was set to meet this"
FIFO = "durations' spread is not published; see what is simulated"
MET = "a place beside one that runs is a slot of the plan, see below"
PRECISION = "durations are known exactly here; pairs turn out better than modelled"
ERROR = "nobody keeps measured pairs in step; other jobs, other GPUs"
JOINED = "who was paired in line matters little: most join one that runs, by the plan"
CAUSE: Mapping[str, str] = {
    "Muri": "its order is taken for first in, first out, and its packing for Cuckoo's joins",
    "Muri-P": f"in both models two jobs never load at once; {JOINED}",
    "Blossom": JOINED,
    "None": "at the headline's load least cost keeps nearly all; the paper's load is not known",
    "FIFO": "the paper's load is not known, and its slots are whole GPUs",
    "EDF": "joins by deadline keep them all, too; the paper's slots are whole GPUs",
    "Cuckoo-Homo": "jobs that load are as fast on any GPU",
    "Muri-Hetero": JOINED,
}
