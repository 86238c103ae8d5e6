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
packing them gains anything at all. What efficiency adds hangs on how well it is foretold (see the \
throughput of pairs)."""

PREDICTED = """\
Of all seeds. What a job's start is planned to come to, beside what came of it. Durations are \
known exactly here, so that only the pairs' slow-down, and who joins later, can make a plan wrong: \
the models overstate how much jobs slow each other down, and what they promise is kept."""

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
- **Muri's jobs load.** Six of its eight models spend more than half of an iteration loading, A2C, \
DQN and ResNet18 nearly all of it. Loading disturbs nobody (the paper's own assumption), so nearly \
every pair runs at nearly full speed, twice as much gets done, and with any packing the queue is \
all but gone: between policies that pack, little is left to be gained. In the paper packing by \
efficiency gained only 7 % of JCT (table 1), so its jobs must have disturbed each other much more. \
Its table 3 has 10 ms of loading and 98 or 363 ms of communication.
- **Nothing keeps jobs in step.** In the paper's model a group goes through its stages together, \
and two jobs never load at the same time: two that mostly load are foretold an efficiency of 1.1 \
to 1.2. Running free they come to 1.9. So pairs of the best kind are left out, and a model that \
knows better (`by GPU shares`) keeps more deadlines, at a lower JCT.
- **Joining goes around the plan.** In the paper a group starts whole, on GPUs that are idle. Here \
a job also joins one that runs alone. While jobs come in fast, most starts are of this kind, GPUs \
hardly ever become idle, and a group planned for idle GPUs waits: who comes next is decided by \
matching, which looks at how close two deadlines are and not at how soon. That is why planning \
(FIFO, EDF, least cost) makes so little difference, and who misses deadlines: short jobs of the \
first burst.
- **What the least cost prefers.** Equation 13 counts every group in an order as an average one: \
without deadlines no order is better than another, and short jobs do not go first. Equation 14 \
gives the slots to whom they still help. So nearly all deadlines are kept without any packing \
where that is possible (`None`); where it is not, jobs become late one after the other, and \
shortest job first keeps far more (durations twice as long).
- **GPUs differ less.** Loading takes as long on any GPU, so that kinds matter little to most of \
these jobs, and homogeneous variants lose little. The paper's takes all GPUs for RTX 4090, ours \
for the first kind, A100.
- **Deadlines are kind to short-first orders.** They are in proportion to durations, which are \
spread (σ = 1) and known."""

FITTED = "the mean duration was set to meet this"
FIFO = "durations' spread is not published; see what is simulated"
MET = "less load once packed, see below"
PRECISION = "durations are known exactly here; pairs turn out better than modelled"
ERROR = "nobody keeps measured pairs in step; other jobs, other GPUs"
CAUSE: Mapping[str, str] = {
    "Muri": "hardly anybody queues once packed; joining goes around the plan",
    "Muri-P": "in both models two jobs never load at once",
    "Blossom": "hardly anybody queues once packed",
    "None": "at this load least cost keeps nearly all; the paper's load is not known",
    "FIFO": "joining goes around the plan",
    "EDF": "joining goes around the plan",
    "Cuckoo-Homo": "jobs that load are as fast on any GPU",
    "Muri-Hetero": "as for Muri",
}
