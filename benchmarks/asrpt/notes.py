"""What the page of `benchmarks.asrpt` says beside its tables."""

from __future__ import annotations

SETTING = """\
A-SRPT's sum of all job completion times, each from submission to end, against the others'; "apart"
is ours less the paper's. The paper has ranges over its baselines, and otherwise only figures
without numbers: "least" and "most" are the ends of a range, over all columns of the table below.

- **Jobs** are made of Philly's arrivals, durations and demands, and come back as PAI's do
  (`benchmarks.asrpt.workload`): PAI's trace, which the paper has, is not at hand. They come three
  times as fast as the cluster can work, as 6,000 GPUs' jobs on 2,000.
- **GPUs**: 8 V100 a server, 10 Gb/s between servers, 300 GB/s within. Nobody shares one.
- **Baselines** are as A-SRPT but for the order, which is theirs, and its patience, which they have
  none of: they map jobs by Heavy-Edge to the same choice of servers. SPJF and SPWF hold the line:
  nobody passes a job that does not fit. The WCS ones let whoever fits start.
- **Three A-SRPTs**: the paper's; CARMA's, which starts the next job rather than leave GPUs idle,
  and whose virtual machine is made of the idle GPUs alone (`[asrpt] reserve = false`); and the
  paper's but for its line, which nobody holds.
- **Predictions** are the forest's, for all, from the four fifths of the two months that come
  before. A job whose like has not run is predicted to take 0 s.
- **Size**: 75,000 jobs on the whole cluster take minutes a run. So most tables are of a fifth:
  every fifth job on 50 servers, which is the same load, for up to three days. The few jobs of more
  than 25 GPUs are left out there: they would have more of the cluster than any has of the whole.
- **One draw** of jobs. Where most are of one GPU, totals are those of few: at Philly's 93 % some
  100 of 4,000 jobs, slowed more than five times by spreading, make up two thirds of the total, ten
  of them over 40 %. So differences of a tenth or two mean little there; the tables of the network
  and of unslowed jobs do not hang on so few."""

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

UNSLOWED = """\
As the two tables before, but between servers there is as much bandwidth as within: what is left is
whose turn it is. Not in the paper."""

PREDICTED = """\
A fifth of the cluster. How far each is off is in asrpt_prediction.md: there the median does best,
and the forest no better than the mean."""

PATIENT = """\
A fifth of the cluster, no job of one GPU. A communication-heavy job waits for better GPUs for at
most τ·g/G·ñ·α̃_min: with τ = 0.5 one of 8 of 400 GPUs for a hundredth of its duration. The paper
does not say which τ it simulated."""

OVERHEAD = """\
How long the policy's plans took, by the clock, while another run had the other core; a run is
processor time of one process. The paper's 5 s a job are of its testbed, of 14 GPUs, and likely
include more than the plan."""

CAUSE = {
    "least": "where most jobs are of one GPU, the held line, and few that are spread (below)",
    "most": "the baselines' jobs are spread as widely",
    "fast": "jobs wait longer here: the load is higher, likely",
    "slow": "whoever holds the line at 1 Gb/s waits for jobs that run on and on",
    "prediction": "a third of Philly's jobs end early, which nobody foresees",
}
CAUSES = """\
- **Spread jobs.** At 10 Gb/s a GPU that is alone on its server has an eighth of that (equation 6),
  and a job that all-reduces its weights over it takes up to 74 times as long as on one server. When
  nearly all GPUs are taken they come free one by one, on any server: whoever has waited for enough
  of them gets the worst that there are, keeps them that much longer, and so lowers what the cluster
  can do. The paper's jobs must suffer less: its VGG19 needs 88 ms an iteration on servers of
  varying availability, which by equation 6 none of its layouts comes to (asrpt_mapping.md).
- **The held line.** A job of 8 GPUs at its head has up to 7 of them idle, and those of one GPU
  behind it wait, which could all have started. Where most are of one GPU that costs the most, and
  WCS, which nobody holds up, is ahead. Where most are of several GPUs A-SRPT with nobody holding
  the line is far ahead of all: its jobs are spread the least, likely as it keeps GPUs idle.
- **The virtual machine.** It is as fast as the GPUs are when no job is spread and none is idle.
  Where jobs really take several times as long it is done with all of them early, and those that it
  is done with go in the order of that: nearly that of arrival. SPJF and SPWF, which hold the line
  as well, go on putting the short ones first, and catch up with A-SRPT the longer such a time
  lasts. Where no job is slowed A-SRPT is about as good as the best or ahead of all, as in the
  paper.
- **Nothing reserved.** The machine of idle GPUs stands still while all are taken: so CARMA's order
  is SPWF's, but for those for which GPUs are kept idle. It does not fall behind the spread jobs as
  the paper's does, and is a little ahead of SPWF. What it lacks are the paper's idle GPUs: those
  that are free for the moment go to jobs of many hours, and at a load of three or more the short
  ones that come later wait for them. A machine as fast as all GPUs, which jobs left with their work
  when they started early, took up to twice as long as this one in trials, and so did one in which
  their work stayed until it was served: both were done with everybody in line while early jobs had
  the GPUs, and went by arrival from then on.
- **Patience.** A longer one helps, whoever holds the line: with τ = 50 a job of 8 of 400 GPUs waits
  for as long as it would run. By g/G it is short on a large cluster.
- **Load.** How many of the paper's jobs had to wait is not known; all differences grow with it."""
