"""The second half of `docs/compared.md`: programs that were not run, by their own documentation, and
what others do and CARMA does not."""

# ruff: noqa: E501 - a row of a table is a line

from __future__ import annotations

LINKS = {
    "dstack 0.21.2": "https://github.com/dstackai/dstack/tree/0.21.2/mkdocs/docs",
    "HTCondor 25.x": "https://htcondor.readthedocs.io/en/latest/",
    "pueue 4.0.4": "https://github.com/Nukesor/pueue/tree/v4.0.4",
}

INTRODUCTION = """\
## By their documentation alone

None of these was run: pueue is in no index that we could reach, HTCondor in none of Debian 12's, and dstack needs Docker on each host. Read in
November 2026: dstack's `mkdocs/docs` and its blog, HTCondor's manual, pueue's README and the help in `pueue/src/client/cli.rs`. "N" means that we found
nothing there."""

FACTS = """
What it is for | runs in containers on clouds, Kubernetes, Slurm, or hosts over SSH (`concepts/fleets`) | pools of many machines | one user's queue of shell commands; "not for hundreds of tasks" (README)
Several jobs on a GPU, by measured memory and load | N: `blocks` are whole GPUs | N: a GPU is listed N times (`condor_gpu_discovery -divide`), its memory divided by N | N: it knows no GPUs
Out-of-memory crashes detected and retried | P: `retry: on_events: [error]`, any error | P: `max_retries`, any exit code | N: `restart --all-failed`, by hand
Says why a job waits | P: offers, events | Y: `condor_q -better-analyze` | N
Runs jobs as the submitting user; passes the shell's environment on | N: in containers, users have tokens; P: `env` by name | Y: as root, with one `UID_DOMAIN`; P: `getenv` | P: a daemon per user; Y
Arrays, dependencies, begin times, hold | N | Y: `queue`, DAGMan, `deferral_time`, `condor_hold` | P: no arrays
Recurring jobs; GPUs booked by users | Y: `schedule: cron`; N | Y: `cron_hour` …; N | N; N
A kind of GPU is chosen; past jobs searched | Y; P: `dstack ps --all` | Y: `require_gpus`; Y: `condor_history` | N; P: `status` filters
A command at the terminal; in a running job | Y: dev environments; Y: SSH | Y: `condor_submit -interactive`; Y: `condor_ssh_to_job` | N; P: `send` writes to its input
MPS; MIG | N; N | N; Y: each instance is a device | N; N
Fair share; quotas | N: `priority`; N | Y; Y: `GROUP_QUOTA` | N; N
Idle jobs ended; preemption | Y: `utilization_policy`; P: of cloud instances | P: by an expression; Y | N; P: `pause`, its GPU memory stays taken
Host memory and CPUs enforced; GPU memory | Y: by containers; N | Y: cgroups; N | N; N
Faulty GPUs leave the queue | Y: DCGM's passive checks | P: an administrator takes them offline | N
GPU use of each job | Y: `dstack metrics`, DCGM | Y: `GPUsAverageUsage`, `GPUsMemoryUsage` | N
Mail and webhooks; web page | N; Y | P: mail; N | P: `callback`, a command; N
Prometheus; a week's report | Y; N | N: Ganglia, Elasticsearch; N | N; N
"""

MISSING = """
## What others do and CARMA does not

| | Who | Instead, with CARMA |
|---|---|---|
| Several servers as one queue | Slurm, HTCondor, dstack | [under Slurm](guides/slurm.md): Slurm chooses the server, CARMA shares its GPUs |
| GPUs of AMD or Intel | Slurm, HTCondor (HIP, OpenCL), dstack | – |
| Machines rented from clouds when the queue is long | Slurm, HTCondor, dstack | – |
| Services with a gateway, replicas and autoscaling | dstack | – |
| A development environment in an IDE, with its ports forwarded, by one command | dstack | [Jupyter](guides/jupyter.md), `carma shell`, and SSH's own forwarding |
| Workflows with rescue files, retries and scripts for each node | HTCondor (DAGMan) | `--dependency`, or [a workflow manager](guides/tools.md) |
| "Either of these jobs" and redoing all that follow | gflow | `--dependency` waits for all |
| Jobs that move with their input and output files | HTCondor, dstack | one server, one file system |
| Licences and other counted things that no GPU is | Slurm (`--licenses`), HTCondor (`concurrency_limits`) | – |
| Text sent to a running job's input; the command of a waiting one edited | pueue (`send`, `edit`) | `carma run` at a terminal; `carma update` changes options, not the command |
| macOS and Windows | HTCondor, pueue | – |
| A look at the GPUs without a daemon | gpustat, nvitop | `nvidia-smi`; all of CARMA's views ask carmad |
| An API over the network, with tokens | gflow (no login), Slurm (`slurmrestd`), dstack | a Unix socket, which SSH forwards; `carma web` for a page |
| Decades of use, on clusters of thousands of machines | Slurm, HTCondor | – |
"""


def draw() -> str:
    heads = ["", *(f"[{name}]({link})" for name, link in LINKS.items())]
    rows = [heads, ["---"] * len(heads)]
    for line in FACTS.strip().splitlines():
        cells = line.split(" | ")
        assert len(cells) == len(heads), line
        rows.append(cells)
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"{INTRODUCTION}\n\n{table}\n{MISSING.rstrip()}"
