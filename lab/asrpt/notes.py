"""What the page of `lab.asrpt` says beside its tables."""

from __future__ import annotations

SETTING = """\
A-SRPT's sum of all job completion times, each from submission to end, against the others'. The
paper has ranges over its baselines, and otherwise only figures without numbers: "least" and "most"
are the ends of a range, over all columns of the table below and all baselines, of each seed. Given
are medians of five seeds, and their range; a seed draws a window of consecutive jobs, as the
paper does. Against perfect prediction they are of ten.

- **Jobs** are made of Philly's arrivals, durations and demands, and come back as PAI's do
  (`lab.asrpt.workload`): PAI's trace, which the paper has, is not at hand. They come as
  often, and last as long in the mean (5,039 s), as PAI's.
- **GPUs**: 50 servers of 8 V100, a fifth of the paper's, for a fifth of its jobs; 10 Gb/s between
  servers, 300 GB/s within. Nobody shares one. The few jobs of more than 25 GPUs are left out.
- **Baselines** have their own order, and map jobs by Heavy-Edge, as the paper says. From which
  servers Heavy-Edge may take GPUs it does not say: here from the first ones by index. The last
  column has the same figures with baselines that take the servers that A-SRPT would take
  (`A-SRPT's servers`).
  Nobody but A-SRPT has patience. SPJF and SPWF hold the queue: nobody passes a job that does not
  fit. The WCS ones let whoever fits start.
- **Three A-SRPTs**: the paper's; CARMA's variant (its default), which starts the next job rather
  than leave GPUs idle, and whose virtual machine is made of the idle GPUs alone
  (`reserve = false`); and the paper's but for its queue, which nobody holds.
- **Predictions** are the forest's, for all, from the first four fifths of the two months. A job
  whose like has not run is predicted to take 0 s, and so goes first under all of them."""

LOAD = """\
The GPU time that jobs ask for, of what there is while they arrive. At their own load (below) the
paper's cluster is about full; here arrivals are spread or shrunk, alike for all."""

JOBS = """\
The paper has 37,500 to 150,000 jobs on five times as many GPUs: windows here are fifteen times
shorter. One of the paper's length is in asrpt_large.md."""

SHARE = """\
Demands are drawn anew: so many jobs of one GPU, the others as those of Philly's that have more. The
fewer of one GPU, the higher the load."""

SERVERS = """\
As the table before, with A-SRPT's choice of servers for all: what is left is the order, the reserve
and the patience."""

NETWORK = """\
No job of one GPU. A job's duration is that on the fewest servers, whatever the network (its
iterations follow from that, as in the paper): only who is spread wider is slowed. Slow-down: an
iteration's time where a job ran, over that on the fewest servers."""

UNSLOWED = """\
Between servers there is as much bandwidth as within: what is left is whose turn it is. Not in the
paper."""

PREDICTED = """\
How far each is off is in asrpt_prediction.md."""

OVERHEAD = """\
How long the policy's plans took, by the clock, while other work had the other core; the first seed.
The paper's 5 s a job are of its testbed, and likely include more than the plan."""

CAUSES = """\
- **Servers.** The lead is the choice of servers: in order of index, baselines spread jobs over
  servers, where at 10 Gb/s an iteration takes up to 233 times as long. Where all take A-SRPT's
  servers, or nobody is slowed, its order, reserve and patience gain or lose little (second table of
  single-GPU jobs, and the one without slow-downs). The paper does not say which servers its
  baselines take.
- **The held queue.** A job of 8 GPUs at its head has up to 7 of them idle, and those of one GPU
  behind it wait, which could all have started. `queue not held` shows what that costs.
- **Short windows.** Of 1,000 jobs of Philly's hardly any waits (table of loads), so that it matters
  little what is predicted; asrpt_large.md has 15,000.
- **Predictions.** A third of Philly's jobs end early, which nobody foresees; PAI's trace was
  cleaned before the paper used it."""
