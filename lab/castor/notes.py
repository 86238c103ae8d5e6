"""What the page of `lab.castor` says beside its tables."""

from lab.castor.workload import PACES

_PACES = ", ".join(f"{a:g} and {b:g} ({family})" for family, (a, b) in PACES.items())

SETTING = """\
Castor's mean against the other policy's; "apart" is ours less the paper's. The paper's numbers are
from its tables 5 and 6 (simulated: 128 A6000, 240 jobs). Ours are 240 jobs on 128 and on 64 A6000:
which load the paper's had is not known. Table 4 is of a testbed, with 30 or 60 jobs of minutes that
are not described well enough to repeat it.

- SJF, SSF, SJF-FFS, Lucid and Castor know how long each job takes alone: the paper's know the
  iterations, but its Lucid predicts. Tiresias knows nothing, and alone preempts. All know what
  memory a job needs. There is no Pollux here: no other policy resizes what a job gets.
- How jobs slow each other down is `conserving`, on streams, unless it says otherwise. Castor does
  not know that: its ratios come from the model that it ships with and the profiles it has seen.
- CARMA's rules hold for all. A GPU takes the next job 30 s after the last one's first kernel, which
  comes 10 s after its launch. Only Castor and Lucid let jobs pass one that waits; with "line not
  held" SJF and SJF-FFS do, too."""

LOAD = f"""\
Five samples of 240 jobs on 128 A6000, means; the claims rest on these. The paper's load is not
known, but FIFO's rows of its tables 5 and 6 tell how long its jobs are (JCT less queueing) and how
crowded it is (queueing over JCT). So durations, and times between arrivals, are multiplied, for all
jobs of a workload alike, until FIFO has both in the mean: {_PACES}. FIFO's own figures are
therefore no result; all others' are."""

MURI = """\
Of each trace the 480 jobs that follow each other the fastest. Hours."""

INTENSITY = """\
Of five samples, on 128 GPUs, hours; 240 jobs are the paper's baseline. The figure has no numbers.
Its claim: Castor's JCT grows the least."""

TECHNIQUES = """\
Castor, on 64 A6000. A process can be the client of one MPS
server only. With a server per GPU (`collocation.mps_scope = "gpu"`, the default) a job of several
GPUs shares by time slices, beside the servers; with one per node it is a client, as on the paper's
testbed. All of Sia's jobs have four GPUs or more. The figure has no numbers for JCT; its claim is
that MPS does better in everything. That cannot be tested here: `conserving` has one coefficient for
both, as no public pairs under MPS tell another (interference.md)."""

BENEFIT = """\
For each job that started beside others: how long until its end had it waited for idle GPUs, over
how long with sharing, both from its start on and as if nobody else came. Computed from the outcome
with the simulator's own interference (`lab.castor.sharing`): had, not foretold. Means are
large because short jobs join ones of many hours; the paper prints none."""

PREDICTION = """\
Castor with the ratios that its model foretells, and with those that the simulator has (the paper's
"mathematical fitting"), on five samples. "Lucid's models" has the same jobs train what Lucid's
authors measured, and each pair slowed as they measured it (`measured`): there the model has seen
the pairs, elsewhere it was never told of the law. For unseen pairs see castor_models.md. On 64 GPUs
one decision taken otherwise changes all that follow: both signs occur."""

SPLITS = """\
Castor on GPUs with little memory, for on an A6000 all pairs fit. What of a job's memory is in
proportion to its batch follows from Lucid's and GPUMemNet's measurements at several batch sizes
(their median for other models), and each part takes a quarter of a step again, the median of what
was fitted to Sia's steps. "Starts in parts": with whole batches the memory would not have done. The
paper has no figures for it alone. Splitting makes more pairs possible, whose newer job has slower
steps to its end; theorem 1 weighs that against waiting for the neighbour. Where GPUs of other jobs
would have become free before, it was not worth it."""

GAVEL = """\
Five of Philly's samples, 160 jobs on 64 V100, under MPS with a server per node; each job trains one
of the configurations of which Gavel measured pairs, and pairs slow down as measured: by up to 11, a
quarter by more than 2. SJF never shares: beside it, the others show what sharing costs. "Castor"
has the model that it ships with, which knows an RTX 3090 on streams; "trained" has one learned from
half of these pairs, as reports of steps alone and beside others tell them on site; "known" has the
simulator's ratios. The paper's figure 14, without numbers: SJF-FFS falls into traps that Castor
avoids."""

DECISIONS = """\
Processor time of a plan for all jobs in line, in the states of a simulated run with 50 to 150 of
them (Philly's first sample; for 128 GPUs its jobs come 20 times as fast). The paper: "averaging
below 0.02 seconds" on 16 GPUs."""

CAUSES = """\
- **Load.** All differences grow with it, and that of the paper's samples is not known; by what
  share of FIFO's JCT is queueing (above) it lies between our two sizes (`python -m lab.castor load`
  has the paper's, castor_load.md). With 128 GPUs and two jobs on each hardly anybody waits here,
  whatever the ratios.
- **Which jobs.** The paper samples "the busiest period", and has 34 % of its testbed's jobs on 16
  or 32 GPUs. The eight hours of Philly's trace in which most jobs come have 1.04 GPUs a job, none
  more than eight, and a median of 0.7 h (`python -m lab.castor.busiest`, castor_busiest.md). Sia's
  samples, with 9 to 10 GPUs a job and nearly half of the jobs large, are nearer to the paper's.
- **Interference.** However many jobs share a GPU, none does less than its share of it
  (`conserving`); no pair comes near the ratios of up to 6 that the paper saw. So sharing seldom
  loses, and little is left for Castor to avoid. SJF-FFS, which always shares, comes
  out alike once it does not hold the line, either. What Castor chooses shows in the benefits, which
  are above 1 more often, and that counts little beside whose turn it is: at high load single
  decisions send runs of one sample different ways, by more than the policies differ on average.
  Theorem 1, too, compares with waiting for the neighbour as if nobody else waited for its GPUs.
- **Tiresias** pays 20 s for each preemption here. In the paper it is hardly better than FIFO. Most
  of that is the load: at the paper's, Castor leads it by 29 and 44 % (castor_load.md). What else
  is not printed of it was tried (`python -m lab.castor.tiresias`, castor_tiresias.md): what a
  preemption costs, the limits of its queues, who may pass, and jobs on the fewest nodes. None of
  these alone makes it much slower. On 96 GPUs, with three of them, Castor leads by about as much as
  in the paper; but Tiresias is still far better than FIFO.
- **Lucid** packs where it may, whether GPUs are idle or not: its benefits are the lowest, and with
  few jobs it is the slowest. It never packs jobs of several nodes, half of Sia's, and wants equal
  numbers of GPUs.
- **Network.** A job of several nodes is as fast here as on one: nothing is lost by spreading, or by
  sharing with several neighbours at once.
- **Profiles.** "Profiling online": a job whose like has not been profiled by the time it is
  submitted runs alone for its first 200 s. Small jobs then find fewer neighbours, and those that
  run are slowed less: it can come out either way."""
