"""What the page of `lab.lucid` says between its tables: conditions, and causes.

Figures in the causes are those of the tables of 2026-11-22.
"""

from __future__ import annotations

from lab.lucid.runs import (
    BUSY,
    FULL,
    LOOKS_AHEAD,
    MURI_PROFILER,
    OFF_BELOW,
    PREEMPTION_S,
    PROFILER,
    WHOLE,
)
from lab.lucid.timing import PLANS, QUEUED
from lab.lucid.workload import AFTER_DAYS, BEFORE, PARTS, SAMPLES

TRACE = f"""\
The paper's week, as the Sia artifact prepared the trace: fewer jobs of less than a third of the
mean duration, and the virtual cluster (VC) instead of the user. The paper's own preparation is not
public. No other week of this trace has the paper's figures either; below is the nearest one.

{len(SAMPLES)} samples of it are simulated: every {PARTS}th job from the first, the second …,
each on a cluster of its own. Which model a job trains is drawn anew for each, as in the paper: the
longer it runs and the more GPUs it has, the more likely a large one. The paper does not say how;
`lab.lucid.workload` says how here. Tables show the median, and the lowest and highest of the
samples; ratios are formed sample by sample."""

LOADS_TOLD = f"""\
Load is the GPU time that the jobs ask for within the week, over that of the GPUs. Load {WHOLE} is
that of the paper's 864 GPUs, where nobody waits in this trace; load {FULL} that of 344, on which
FIFO queues for as long as in the paper. In the paper's simulations 10 to 12 jobs wait on average,
and 119 to 340 at most (4.4). Each sample is a {PARTS}th of the jobs, so its queue counts {PARTS}
times. By that, everything else is at load {BUSY}: this one number was set, all others follow."""

HEADLINE = f"""\
- All policies have the same GPUs. {PROFILER.gpus} of them are Lucid's profiler, a {PARTS}th of the
  16 that its artifact has for Philly, with T_prof {PROFILER.run_s:.0f} s as in the paper.
- fifo, horus and tiresias know nothing of durations; sjf knows them. qssf is told what a GA²M
  foretells from the VC, the GPUs and the clock, lucid what one foretells that has the profile, too.
  Both models are from the {AFTER_DAYS} days afterwards (the paper's: three months).
- Only tiresias preempts; saving, loading and starting again cost {PREEMPTION_S:.0f} s, as its
  authors measured it (4.8).
- horus looks {LOOKS_AHEAD} jobs ahead and knows each job's memory, which it would predict; the
  others know none, lucid what its profiles show.
- Pairs slow each other down as Lucid's authors measured it. The pairs of BERT, ResNet-50 and
  Transformer are not in the data at hand: they slow down as `conserving` has it.
- CARMA's own settings are the defaults: 10 s to the first kernel, 30 s of settling after it."""

RATIOS = "How many times as long it takes under the other policy, sample by sample."

WHOLE_TOLD = f"""\
With so little work nobody need wait, whatever the policy, and only what Lucid costs is seen: jobs
share though GPUs are idle (algorithm 2 does), a job that is profiled starts twice, and bursts of
submissions wait for the profiler. With `off_below` at {OFF_BELOW} GPUs in ten minutes, which this
cluster can serve without sharing (by the week before), JCT is the same: the last hour's mean or the
forecast is above that too often. `load {WHOLE}` is Lucid without it."""

FORETOLD = """\
How well the durations of the test week are foretold, by models that have not seen it: a GA²M of
what is known at submission (plain: for qssf), and of that and the profile (profiled: for lucid).
The VC stands for the user; the trace names no jobs."""

MURI_TOLD = f"""\
Lucid's paper has no such figures. The traces name no users to learn from: sjf, qssf and lucid know
the durations. Jobs are named by configuration, so one profile serves all runs of it.
{MURI_PROFILER.gpus} GPUs are Lucid's profiler. Muri's models were not measured in pairs and slow
down as `conserving` has it. Nothing is drawn."""

FIGURE_11 = f"At load {BUSY}. Figure 11 is of Venus, whose public log (lab/DATA.md) is not at hand."

ABLATIONS_TOLD = """\
- Sharing matters most: without it JCT is higher in every sample, and the queue several times as
  long.
- Sharing wherever memory allows (naive) costs 1 % of JCT in the median, and shortens the queue in
  every sample. In the paper the binder shortens the queue, too. Here a pair more is a job less in
  line, and what it costs is seen in the slowdown (1.07 for 1.04).
- The time-aware rule (a job joins none whose GPUs × duration is less than half of its own) changes
  JCT by at most 4 % in any sample, the guard on utilisation by at most 2 %. An earlier version of
  this page said that the rule doubles the queue. It had an overloaded cluster, where each pair less
  makes the queue longer; it does not hold at the paper's queue.
- Without the estimator JCT is the same in the median, and 38 % higher in one sample.
- Without sharing Lucid is no better than qssf (paper: over 2.0 times)."""

FIGURE_12 = """\
Jobs draw from all configurations (median), from all but the third that keeps a GPU busiest (low),
or from all but the third that keeps it least busy (high). The paper prints no utilisations, and has
Venus. Durations, and with them the GPU time asked for, are the same in all three."""

THRESHOLDS_TOLD = """\
Trees from labels by the lowest and by the highest thresholds that the paper tries (Medium 0.75 to
0.85, Tiny 0.90 to 0.97), instead of the shipped one (0.85 and 0.95). The guard on utilisation
stays."""

LIMITS = """\
Table 6 is of Venus; ours are the samples of Philly's week. To be compared is how they change with
T_prof, not their height."""

PLANS_TOLD = f"""\
{QUEUED:,} jobs in line on 128 GPUs, all with a profile and a prediction, {PLANS} plans each. Every
plan follows a new reading of all GPUs. Processor time, on a machine that others used, too. A plan
that places nobody, or one, is what a daemon makes nearly always."""

TUNER = f"""\
What the System Tuner is to do: every combination of T_prof, profiling GPUs and sharing capacity on
one sample of the week before ({BEFORE}), and the best by mean JCT then on the test week."""

PROFILER_NOTE = "paper: up to; T_prof 500 s, no time-aware scaling"

CAUSES = f"""\
- The load. An earlier version of this page had 344 GPUs for the whole week, and a longest queue of
  1,358 jobs, where the paper has 340 at most. At load {BUSY} the mean queue is the paper's.
- The trace. Its jobs run for a third of the paper's time, so JCTs are shorter where queues are
  alike.
- The samples. A tenth of a cluster has few GPUs for jobs of 8 to 32, and a single such job that
  runs for days decides how long others queue: samples differ several times over, fifo's most.
- Nothing tells who submits but the VC, so qssf's model explains next to nothing of the durations.
  Lucid's explains more, for which the drawn models are the reason, in the paper as here: long jobs
  draw large models, so that a busy GPU foretells a long job.
- Horus is ahead of Lucid in most samples: it may put three jobs on a GPU, knows their memory, and
  restarts no job to profile it. The paper's has priorities; its p99.9 of 223 h is
  the longest of all.
- Tiresias queues a third as long as in the paper although a preemption costs {PREEMPTION_S:.0f} s.
  In the simulator of Lucid's authors (`lab.lucid.authors`) it does so on these samples, too: it is
  the workload.
- How busy the drawn jobs keep their GPUs is not printed in the paper (figure 12 (a)). The busier,
  the fewer pairs are affine. `lab.lucid.sensitivity` has busier and less busy jobs.
- The artifact lets a job start on the main cluster at its submission though it is profiled first,
  as its two simulations have one clock each: its JCTs lack up to T_prof and the profiler's queue.
  That explains minutes."""
