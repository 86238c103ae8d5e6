"""What the page of `benchmarks.asrpt` says beside its tables."""

from __future__ import annotations

SETTING = """\
A-SRPT's sum of all job completion times, each from submission to end, against the others'; "apart"
is ours less the paper's. The paper has ranges over its baselines, and otherwise only figures
without numbers: "least" and "most" are the ends of a range, over all columns of the table below.

- **Jobs** are made of Philly's arrivals, durations and demands, and come back as PAI's do
  (`benchmarks.asrpt_workload`): PAI's trace, which the paper has, is not at hand. They come three
  times as fast as the cluster can work, as 6,000 GPUs' jobs on 2,000.
- **GPUs**: 8 V100 a server, 10 Gb/s between servers, 300 GB/s within. Nobody shares one.
- **Baselines** are as A-SRPT but for the order, which is theirs, and its patience, which they have
  none of: they map jobs by Heavy-Edge to the same choice of servers. SPJF and SPWF hold the line:
  nobody passes a job that does not fit. The WCS ones let whoever fits start.
- **Three A-SRPTs**: the paper's; CARMA's, which starts the next job rather than leave GPUs idle
  (`[asrpt] reserve = false`); and the paper's but for its line, which nobody holds.
- **Predictions** are the forest's, for all, from the four fifths of the two months that come before.
  A job whose like has not run is predicted to take 0 s.
- **Size**: 75,000 jobs on the whole cluster take minutes a run. So most tables are of a fifth: every
  fifth job on 50 servers, which is the same load, for up to three days. The few jobs of more than
  25 GPUs are left out there, as they would have more of the cluster than any has of the whole."""

JOBS = """\
A fifth of the cluster. Of so many jobs, which came within one day to three, every fifth was
simulated; the paper has 37,500 to 150,000."""

WHOLE = """\
75,000 jobs, and every fifth of them on a fifth of the servers: does the size matter?"""

SHARE = """\
A fifth of the cluster. Demands are drawn anew: so many jobs of one GPU, the others as those of
Philly's that have more. The fewer of one GPU, the higher the load."""

NETWORK = """\
A fifth of the cluster, no job of one GPU. A job's duration is that on the fewest servers, whatever
the network (its iterations follow from that, as in the paper): only who is spread wider is slowed.
Slow-down: an iteration's time where a job ran, over that on the fewest servers."""

PREDICTED = """\
A fifth of the cluster. How well each does is in asrpt_prediction.md; the forest is no better than
mean and median there."""

PATIENT = """\
A fifth of the cluster, no job of one GPU. A communication-heavy job waits for better GPUs for at
most τ·g/G·ñ·α̃_min: τ = 0.5 lets a job of 8 of 400 GPUs wait for a hundredth of its duration. The paper
does not say which τ it simulated."""

OVERHEAD = """\
How long the policy's plans took, by the clock, while another run had the other core; a run is
processor time of one process. The paper's 5 s a job are of its testbed, of 14 GPUs, and likely
include more than the plan."""

CAUSE = {
    "order": "the held line costs more than the order wins",
    "line": "the held line, where the other holds none",
    "network": "all spread jobs as widely: patience is short",
    "prediction": "a wrong order matters little where the line is held",
}
CAUSES = ""
