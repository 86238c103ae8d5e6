"""A job's environment, command line, log file names and limits on the host.

Nothing here starts or reads a process; only the passwd database is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import socket
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from carmad import hooks
from carmad.added import ADDED, take_back
from carmad.core.gpus.gpu import Gpu
from carmad.core.jobs import recurrence
from carmad.core.jobs.attempt import GpuId, Mode
from carmad.core.jobs.job import Job
from carmad.core.jobs.spec import JobSpec
from carmad.paths import fill
from carmad.words import first_few

ATTEMPT_VARIABLE = "CARMA_ATTEMPT_DIR"  # in the job's environment: identifies its processes

# Where the conda wrapper reports why it could not start the program, for the supervisor.
REPORT_FD = 9

HOOKS = str(Path(hooks.__file__).parent)  # with a `sitecustomize` for the job's Python
SHIMS = f"{HOOKS}/bin"  # with an `srun` for job scripts
_SRUN = re.compile(r"\bsrun\b")

BATCH_SIZE = "{batch_size}"  # in the command of a job that declared its batch size

# A directory that never exists: a program that finds no MPS daemon runs without MPS, while with the
# default, /tmp/nvidia-mps, it would join whatever server happens to run there.
NO_MPS = "/nonexistent/carma-without-mps"

_NOT_OURS = re.compile(
    # the login session, which ends before the job does
    r"SSH_.*|.*DISPLAY|XAUTHORITY|XDG_(SESSION|SEAT|VTNR|RUNTIME).*|DBUS_SESSION_BUS_.*"
    r"|SESSION_MANAGER|GPG_(AGENT_INFO|TTY)|TMUX.*|STY|WINDOWID|PWD|OLDPWD|_"
    # the choice of GPUs, which is CARMA's
    r"|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|NVIDIA_VISIBLE_DEVICES|CUDA_MPS_.*"
    # another scheduler's job, or the job that submits this one
    r"|CARMA_.*|(SLURMD?|SBATCH|SRUN|SALLOC|PBS|PMI|PMIX)_.*"
    # a service that submits
    r"|NOTIFY_SOCKET|WATCHDOG_.*|LISTEN_(FDS|PID|FDNAMES)|INVOCATION_ID|JOURNAL_STREAM"
    r"|MAINPID|MANAGERPID|SYSTEMD_EXEC_PID|(RUNTIME|STATE|CACHE|LOGS|CONFIGURATION)_DIRECTORY"
)
# The user's own thread percentage or priority can only lower a client's share, and is kept.
_MPS = MPS_PIPE, _LOG, _LIMIT = (
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
)
_ARRAY = ("JOB_ID", "TASK_ID", "TASK_COUNT", "TASK_MIN", "TASK_MAX")
# What only some jobs have: one that is started from within another must not inherit it.
_PER_JOB = (
    *_MPS,
    *(f"{who}_ARRAY_{what}" for who in ("CARMA", "SLURM") for what in _ARRAY),
    "CARMA_GPU_MEM_MB",
    "CARMA_ACCUMULATION_STEPS",
    "CARMA_BATCH_SIZE",
    "CARMA_CPUS",
    "SLURM_CPUS_PER_TASK",
)
_CHOSEN = re.compile(
    r"(CARMA|SLURMD?)_.*|CUDA_(VISIBLE_DEVICES|DEVICE_ORDER|MPS_.*)|PYTHONPATH|KINETO_LOG_LEVEL"
    r"|XLA_.*|TF_FORCE_GPU_ALLOW_GROWTH|OMP_NUM_THREADS|PYTHONUNBUFFERED|(PET_)?MASTER_PORT"
)
# The ports that jobs get, below those that the kernel gives to connections and torchrun's default.
# Jobs in a row are a step apart, as some programs take the next few ports as well. The numbers have
# no common factor, so only jobs whose ids are a multiple of `_PORTS` apart share one.
_FIRST_PORT, _PORTS, _PORT_STEP = 20_000, 7_000, 97
_XLA_MEMORY = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
)

_CONDA = Path(__file__).with_name("conda.sh").read_text(encoding="utf-8")


def scrub(env: Mapping[str, str]) -> dict[str, str]:
    """The part of a submitter's environment that the job gets.

    Dropped, because it would be wrong by the time the job runs:

    - the login session: SSH_*, *DISPLAY, XAUTHORITY, XDG_SESSION_* and XDG_RUNTIME_DIR, D-Bus,
      gpg-agent, tmux and screen, PWD, OLDPWD, _;
    - the choice of GPUs: CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER, NVIDIA_VISIBLE_DEVICES,
      CUDA_MPS_*;
    - other jobs and services: CARMA_*, SLURM_*, SBATCH_*, SRUN_*, SALLOC_*, PBS_*, PMI_*, PMIX_*,
      what systemd sets for a service, and what CARMA has added to the job that submits this one.

    LD_PRELOAD and LD_LIBRARY_PATH are kept: the job runs as its user, and they select allocators.
    To pass a dropped variable on: `--export NAME=VALUE`.
    """
    return {
        name: value
        for name, value in take_back(env).items()
        if name and "=" not in name and not _NOT_OURS.fullmatch(name)
    }


def excluded(env: Iterable[str], export: Container[str], patterns: str) -> tuple[str, ...]:
    """The names in `env` that match one of the patterns, which are those of a shell and separated
    by commas or spaces; but for what is exported by name."""
    each = patterns.replace(",", " ").split()
    return tuple(
        name for name in env if name not in export and any(fnmatchcase(name, one) for one in each)
    )


def lacking_note(names: Sequence[str]) -> str:
    """What its owner should know of a job whose secrets are gone."""
    return (
        f"has no {first_few(', '.join(names))}: what looks like a secret is stored only until a job"
        " has ended, and in no backup; submit it again, or requeue it when it has ended, from a"
        " shell that has it"
    )


def job_environment(
    job: Job,
    gpus: Sequence[GpuId],
    *,
    indices: Sequence[int] = (),
    cuda_indices: Mapping[GpuId, int] | None = None,
    mps_pipe: Path | None = None,
    mps_log: Path | None = None,
) -> dict[str, str]:
    """The complete environment of the job's current attempt on `gpus`.

    `indices`: of these GPUs, in PCI bus order. `cuda_indices`: where they are certain to mean the
    same GPUs to CUDA. The job's processes have to see all of them: under MPS, in a container and in
    another system's allocation, UUIDs name the GPUs.
    `mps_pipe`: the pipe directory of the MPS daemon that serves these GPUs; None: without MPS.
    HOME and SHELL are the user's own unless the job sets others; USER, LOGNAME and everything
    about GPUs and ids are set by CARMA. Without `gpus`, the job sees no GPU. What is added unless
    the user has set it is listed for `carmad.added`.

    Of Slurm's variables, those that programs take as a sign that srun has started a process for
    each task are left out: SLURM_NTASKS, SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID (Lightning would
    refuse several GPUs, timm and others would start distributed training), and SLURM_JOBID and
    SLURM_NODELIST (MPI would ask Slurm to start its processes). A job of CARMA's own sbatch has
    them: SLURM_SUBMIT_HOST and those that depend on its options are among its variables then,
    and there is an srun for what MPI asks.
    """
    spec = job.spec
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", **_user(spec.uid), **dict(spec.env)}
    env |= recurrence.variables(recurrence.params(spec))
    added: dict[str, str] = {}

    def add(**variables: str) -> None:
        for name, value in variables.items():
            if name not in env:
                env[name] = added[name] = value

    add(PYTHONUNBUFFERED="1")  # or a log gets its lines late, and never if the job is killed
    if env.keys().isdisjoint(("MASTER_PORT", "PET_MASTER_PORT")):  # the latter is torchrun's
        port = str(_FIRST_PORT + job.id * _PORT_STEP % _PORTS)
        add(MASTER_PORT=port, PET_MASTER_PORT=port)
    for name, value in _ids(job).items():
        env[f"CARMA_{name}"] = env[f"SLURM_{name}"] = value
    host = socket.gethostname()
    env |= {
        "USER": spec.user,
        "LOGNAME": spec.user,
        "PWD": spec.cwd,
        "SLURM_GPUS_ON_NODE": str(len(gpus)),
        "SLURM_JOB_NODELIST": host,
        "SLURMD_NODENAME": host,
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "CUDA_VISIBLE_DEVICES": ",".join(_visible(job, gpus, cuda_indices or {})),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    env.setdefault("SLURM_SUBMIT_DIR", spec.cwd)
    if "SLURM_SUBMIT_HOST" in env:
        env |= {"SLURM_JOBID": str(job.id), "SLURM_NODELIST": host, **_times(job)}
        env |= {"SLURM_JOB_USER": spec.user, "SLURM_JOB_UID": str(spec.uid)}
        if indices:
            env["SLURM_JOB_GPUS"] = ",".join(map(str, indices))
    if _calls_srun(spec):
        env["PATH"] += os.pathsep + SHIMS
        added["PATH"] = SHIMS
        env["CARMA_PYTHON"] = sys.executable  # which has what that needs
    if spec.cpus is not None:
        env["CARMA_CPUS"] = str(spec.cpus)
        env.setdefault("SLURM_CPUS_PER_TASK", str(spec.cpus))  # sbatch's: of one of several tasks
        # Most numerical libraries would start a thread for each of the host's CPUs.
        add(OMP_NUM_THREADS=env["SLURM_CPUS_PER_TASK"])
    if job.need is not None:
        env["CARMA_GPU_MEM_MB"] = str(job.need.mib)
    if (part := _sub_batch(job)) is not None:
        env["CARMA_ACCUMULATION_STEPS"] = str(job.accumulation)
        env["CARMA_BATCH_SIZE"] = str(part)
    if spec.watch_stages and gpus:  # without GPUs it is only a trial
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (HOOKS, env.get("PYTHONPATH"))))
        added["PYTHONPATH"] = HOOKS
        # The last line of the job's standard error may say why it failed, so silence the profiler.
        add(KINETO_LOG_LEVEL="7")
    if job.mode not in (Mode.EXCLUSIVE, Mode.MIG) and not job.exclusive:
        # Both take nearly all of the GPU's memory at startup unless told otherwise.
        if not any(name in env for name in _XLA_MEMORY):
            add(XLA_PYTHON_CLIENT_PREALLOCATE="false")
        add(TF_FORCE_GPU_ALLOW_GROWTH="true")
    for name in _MPS:
        env.pop(name, None)
    env[ADDED] = json.dumps(added)
    return env | mps_environment(gpus, mps_pipe, mps_log, job.limit_mib)


def _visible(job: Job, gpus: Sequence[GpuId], indices: Mapping[GpuId, int]) -> Sequence[str]:
    hidden = job.spec.container or job.spec.allocation or job.mode is Mode.MPS
    if hidden or not indices.keys() >= set(gpus):
        return gpus
    return [str(indices[gpu]) for gpu in gpus]


def at_a_terminal(env: Mapping[str, str]) -> dict[str, str | None]:
    """The part of an attempt's environment that CARMA chose; None: to be unset. The rest is the
    shell's own, which may have what the job's stored copy lacks."""
    ours = {name: value for name, value in env.items() if _CHOSEN.fullmatch(name)}
    if env.get("PATH", "").endswith(SHIMS):
        ours["PATH"] = env["PATH"]
    return dict.fromkeys(_PER_JOB) | ours


def in_an_allocation(env: Mapping[str, str]) -> dict[str, str | None]:
    """Likewise; but Slurm's variables, and its srun, are real there, if there are any."""
    ours = at_a_terminal(env)
    ours.pop("PATH", None)
    return {name: value for name, value in ours.items() if not name.startswith("SLURM")}


def _ids(job: Job) -> dict[str, str]:
    """What CARMA_ and SLURM_ variables alike say of the job."""
    ids = {
        "JOB_ID": str(job.id),
        "JOB_NAME": job.spec.name,
        "RESTART_COUNT": str(job.attempt - 1),
    }
    if task := job.spec.array:
        ids |= {"ARRAY_JOB_ID": str(task.array), "ARRAY_TASK_ID": str(task.index)}
        if task.tasks:
            ids |= {
                "ARRAY_TASK_COUNT": str(task.tasks),
                "ARRAY_TASK_MIN": str(task.least),
                "ARRAY_TASK_MAX": str(task.most),
            }
    return ids


def _calls_srun(spec: JobSpec) -> bool:
    """Only such jobs get our srun: Lightning warns others about it."""
    words = (spec.script.text if spec.script else "", *spec.argv)
    return any(_SRUN.search(word) for word in words)


def _user(uid: int) -> dict[str, str]:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return {"HOME": "/", "SHELL": "/bin/sh"}
    return {"HOME": entry.pw_dir, "SHELL": entry.pw_shell or "/bin/sh"}


def mps_environment(
    gpus: Sequence[GpuId], pipe: Path | None, log: Path | None, limit_mib: int | None
) -> dict[str, str]:
    """What makes a process a client of the MPS daemon at `pipe`; None: of none."""
    if pipe is None:
        return {MPS_PIPE: NO_MPS}
    env = {MPS_PIPE: str(pipe)}
    if log is not None:
        env[_LOG] = str(log)
    if limit_mib is not None:
        # Per client, and only for visible GPUs: an entry for any other GPU disables all limits.
        env[_LIMIT] = ",".join(f"{gpu}={limit_mib}M" for gpu in gpus)
    return env


def command(job: Job, script: str | None = None) -> tuple[str, ...]:
    """The argv to execute: the user's own, inside the conda environment if one is named.

    `script`: the path to run in place of that of the job script.

    Only a shell function of conda's can activate the environment; `exec "$@"` then keeps every
    argument as given. If the job declared its batch size, `{batch_size}` is replaced by this
    attempt's micro-batch size.
    """
    argv, part = list(job.spec.argv), _sub_batch(job)
    if script and job.spec.script:
        argv[job.spec.script.word] = script
    if part is not None:
        argv = [word.replace(BATCH_SIZE, str(part)) for word in argv]
    if job.spec.conda_env is None:
        return tuple(argv)
    return ("/bin/bash", "-c", _CONDA, "carma-conda", job.spec.conda_env, *argv)


def _times(job: Job) -> dict[str, str]:
    """When Slurm would say that the attempt began, and when its time limit ends it."""
    if job.started_at is None:
        return {}
    began = int(job.started_at)
    times = {"SLURM_JOB_START_TIME": str(began)}
    if job.spec.time_limit_s is not None:
        left_s = job.spec.time_limit_s - job.attained_s(job.started_at)
        times["SLURM_JOB_END_TIME"] = str(began + int(left_s))
    return times


def _sub_batch(job: Job) -> int | None:
    """The micro-batch size; None for a job that declared no batch size."""
    size = job.spec.batch_size
    return None if size is None else size // job.accumulation


def expand(pattern: str, job: Job, ahead: int = 0) -> str:
    """A log file's name: %j id, %x name, %u user, %A array id, %a array index, %% a percent.
    `ahead`: of the task that is so many behind the first that the job stands for.

    Outside an array %A is the job's id and %a is 0. A `/` in the job's name becomes `_`.
    """
    task = job.spec.array
    values = {
        "j": str(job.id + ahead),
        "x": job.spec.name.replace("/", "_"),
        "u": job.spec.user,
        "A": str(task.array if task else job.id),
        "a": str(task.index + ahead * task.step if task else 0),
        "%": "%",
    }
    return fill(pattern, values)


def has_log(spec: JobSpec) -> bool:
    """At a terminal a job has none. A `carma run` that can repeat its command keeps one."""
    return spec.requeue or not spec.interactive


def log_paths(job: Job, ahead: int = 0) -> tuple[str, str]:
    """Where the job's stdout and stderr go, as absolute paths; often the same. `ahead`: as of
    `expand`."""
    stdout = _path(job.spec.cwd, expand(job.spec.stdout, job, ahead))
    if job.spec.stderr is None:
        return stdout, stdout
    return stdout, _path(job.spec.cwd, expand(job.spec.stderr, job, ahead))


_SUPERFLUOUS = re.compile(r"/(?:\.?/)+")


def _path(folder: str, name: str) -> str:
    """As `Path(folder, name)`, which takes ten times as long: a listing has 10,000."""
    return _SUPERFLUOUS.sub("/", f"/{name}" if name.startswith("/") else f"{folder}/{name}")


# -- limits, as files of its cgroup. The CPUs are a quota of processor time, not a set: the kernel
# may spread it, and nothing has to remember which job has which CPU. Memory is without swap:
# otherwise a job would not stop at its limit, but slow the whole server down

PERIOD_US = 100_000  # the kernel's usual one
CPU, MEMORY = "cpu", "memory"  # cgroup controllers


def controllers(systemd: bool, group: str) -> frozenset[str]:
    """Those by which jobs can be limited: in their units or, without systemd, below the delegated
    cgroup `group` ("": there is none), which is prepared for it."""
    uid = os.geteuid()
    if systemd:
        users = f"user.slice/user-{uid}.slice/user@{uid}.service" if uid else ""
        return _words(Path("/sys/fs/cgroup", users, "cgroup.controllers"))
    if not group:
        return frozenset()
    for each in (CPU, MEMORY):
        with contextlib.suppress(OSError):
            Path(group, "cgroup.subtree_control").write_text(f"+{each}")
    return _words(Path(group, "cgroup.subtree_control"))


def _words(path: Path) -> frozenset[str]:
    try:
        return frozenset(path.read_text().split()) & {CPU, MEMORY}
    except OSError:
        return frozenset()


def cpus_near(spec: JobSpec, gpus: Iterable[Gpu]) -> tuple[int, ...]:
    """The CPUs on which a job with these GPUs starts: those near one of them, if it asks for CPUs
    and they are enough. None: on any, as with a GPU of which that is not known."""
    each = [gpu.cpus for gpu in gpus]
    found = set().union(*each) if all(each) else set()
    return tuple(sorted(found)) if spec.cpus is not None and len(found) >= spec.cpus else ()


def limit_files(spec: JobSpec) -> dict[str, str]:
    """What its cgroup's files are to contain."""
    found = {}
    if spec.cpus is not None:
        found["cpu.max"] = f"{spec.cpus * PERIOD_US} {PERIOD_US}"
    if spec.host_memory_mib is not None:
        found |= {"memory.max": str(spec.host_memory_mib << 20), "memory.swap.max": "0"}
    return found
