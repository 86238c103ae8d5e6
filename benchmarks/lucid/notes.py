"""What the page of `benchmarks.lucid` says between its tables: conditions, and likely causes.

Figures in the causes are those of the tables of 2026-11-21.
"""

from __future__ import annotations

from benchmarks.lucid.runs import BUSY, FEW, LOOKS_AHEAD, PROFILER, SMALL, WHOLE
from benchmarks.lucid.timing import PLANS, QUEUED
from benchmarks.lucid.workload import AFTER_DAYS, BEFORE, MURI_JOBS

TRACE = """\
The paper's week, as the Sia artifact prepared the trace: fewer jobs of less than a third of the
mean duration, and the virtual cluster (VC) instead of the user. The paper's own preparation is not
public. No other week of this trace has the paper's figures either; below is the nearest one.

Which model a job trains is drawn, as in the paper: the longer it runs and the more GPUs it has, the
more likely a large one. The paper does not say how. `benchmarks.lucid.workload` says how here."""

WHOLE_TOLD = f"""\
With so little work nobody waits on {8 * WHOLE} GPUs, whatever the policy, and only what Lucid costs
is seen. That is 11 % of JCT: it lets jobs share though GPUs are idle (algorithm 2 does, and the
mode that would forbid it, `lucid.off_below`, is off by default), a job that is profiled starts
twice, and bursts of submissions wait for the {PROFILER.gpus} GPUs of the profiler."""

BUSY_TOLD = f"""\
The same jobs on {8 * BUSY} GPUs, on which FIFO lets them wait most nearly as long as in the paper.
That one number was set; all others are what follows from it.

- All policies have the same GPUs. {PROFILER.gpus} of them are Lucid's profiler, as in its artifact
  for Philly, with T_prof {PROFILER.run_s:.0f} s as in the paper (the artifact has 80 s).
- fifo, horus and tiresias know nothing of durations; sjf knows them. qssf is told what a GA²M
  foretells from the VC, the GPUs and the clock, lucid what one foretells that has the profile, too.
  Both models are from the {AFTER_DAYS} days afterwards (the paper's: three months).
- Only tiresias preempts. horus looks {LOOKS_AHEAD} jobs ahead and knows each job's memory, which it
  would predict; the others know none, lucid what its profiles show.
- Pairs slow each other down as Lucid's authors measured it. The pairs of BERT, ResNet-50 and
  Transformer are not in the data at hand: they slow down as `learned` has it.
- CARMA's own settings are the defaults: 10 s to the first kernel, 30 s of settling after it."""

RATIOS = "How many times as long it takes under the other policy, from the tables above."

FORETOLD = """\
How well the durations of the test week are foretold, by models that have not seen it: a GA²M of
what is known at submission (plain: for qssf), and of that and the profile (profiled: for lucid).
The VC stands for the user; the trace names no jobs."""

MURI_TOLD = f"""\
Lucid's paper has no such figures. The traces name no users to learn from: sjf, qssf and lucid know
the durations. Of trace 2 only the first {MURI_JOBS:,} jobs were run. {SMALL.gpus} GPUs are Lucid's
profiler. Muri's models were not measured in pairs and slow down as `learned` has it.

- Where durations are known, a policy that orders by them is far ahead of tiresias, which has to
  find out, with jobs that run for days.
- Profiled in place, a job that waits has no profile, so that it is packed with nobody: Lucid then
  shares with recurring jobs only, and is qssf with a line that nobody holds."""

FEW_TOLD = f"""\
Every third job on {8 * FEW} GPUs, {SMALL.gpus} of them to profile on, and the mean over the three
thirds: whole weeks would take too long. Figure 11 is of Venus, whose log is not at hand."""

ABLATIONS_TOLD = """\
What decides here is a rule that the paper mentions in one sentence (3.1) and the artifact has: a
job joins none whose GPUs × duration is less than half of its own. It forbids so many pairs that
Lucid's queue is twice as long with it. Two of the paper's ablations are without it, too, for want
of durations: "naive" packing, and no estimator. Against Lucid without that rule they come to
about what the paper has; against Lucid with it they look like improvements. The week asks for
half as much again as there is, so that each pair less makes the queue longer; Venus has idle
times.

- Sharing itself halves the queue, even with the rule. Two jobs that are both busy still got 1.5
  times as much done together in the authors' measurements as one after the other.
- Without sharing Lucid is hardly better than qssf (paper: over 2.0 times): 7 % of the GPUs are the
  profiler's, and all of them are wanted.
- Space-awareness has little to reorder: 96 % of Philly's jobs ask for one GPU."""

VARIANTS = "The thirds again, under other assumptions; `lucid` as it is stands above."

LIMITS = """\
Table 6 is of Venus; ours are the thirds of Philly's week. To be compared is how they change with
T_prof, not their height. As in the paper it changes the profiler a lot and the whole hardly. The
share that ends while profiled hardly grows: 23 % of this week's jobs are shorter than 100 s, and
only 2 % are between 100 and 200 s."""

PLANS_TOLD = f"""\
{QUEUED:,} jobs in line on 128 GPUs, all with a profile and a prediction, {PLANS} plans each. Every
plan follows a new reading of all GPUs. Processor time, on a machine that others used, too. A plan
that places nobody, or one, is what a daemon makes nearly always; one that places a hundred at once
takes longer than wanted, as each placement makes a new view and tells what spoke for it."""

TUNER = f"""\
What the System Tuner is to do: every combination of T_prof, profiling GPUs and sharing capacity on
the thirds of the week before ({BEFORE}), and the best by mean JCT then on the test week."""

NOTES = {
    ("JCT", "fifo"): "jobs run for 2.2 h on average, the paper's for 6.4 h",
    ("JCT", "sjf"): "as above",
    ("JCT", "qssf"): "shorter jobs, longer queue",
    ("JCT", "horus"): "shorter jobs, longer queue",
    ("JCT", "tiresias"): "shorter jobs",
    ("JCT", "lucid"): "shorter jobs, longer queue",
    ("queue", "fifo"): "the one that the number of GPUs was set by",
    ("queue", "qssf"): "nothing to foretell durations from: no users, no names",
    ("queue", "horus"): "in order of arrival; the paper's has priorities",
    ("queue", "lucid"): "GPUs short all week, see causes",
    ("p99.9 queue", "horus"): "in order of arrival nobody starves",
    ("p99.9 queue", "lucid"): "no job is held back for one before it",
}

PROFILER_NOTE = "paper: up to; T_prof 500 s, no time-aware scaling"

CAUSES = f"""\
- The trace. Its jobs run for a third of the paper's time, so that JCTs are shorter where queues are
  alike. To make FIFO queue as long, the cluster had to shrink to {8 * BUSY} GPUs, of which the week
  asks for 148 %. Such a queue is of work, rather than of a few long jobs that stand before others:
  a policy can reorder it, and by sharing get more done, but it cannot make it go away. That is the
  likeliest cause of Lucid's longer queue; how much the paper's week asks for is not told.
- The time-aware rule, which costs Lucid half of its queue here (see the ablations).
- Nothing tells who submits but the VC, so qssf's model explains next to nothing of the durations.
  Lucid's explains half, for which the drawn models are the reason, in the paper as here: long jobs
  draw large models, so that a busy GPU foretells a long job. What that is worth is told above, by
  lucid foretold without the profile, and by both with durations known.
- {PROFILER.gpus} profiling GPUs are 4.7 % of {8 * BUSY}, and 1.9 % of the paper's {8 * WHOLE}.
- The artifact lets a job start on the main cluster at its submission though it is profiled first,
  as its two simulations have one clock each: its JCTs lack up to T_prof and the profiler's queue.
  That explains minutes.
- How busy the drawn jobs keep their GPUs is not printed in the paper (figure 12 (a)). The busier,
  the fewer pairs are affine.
- Horus goes by arrival here. The paper's p99.9 of 223 h, the longest of all, suggests that there it
  does not.
- Settling hardly matters: a window of 1 s instead of 30 s changes next to nothing.
- One draw of models (seed 0) and one week: between its thirds, queues differ by a factor of two."""
