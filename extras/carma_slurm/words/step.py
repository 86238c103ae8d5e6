"""A step of a job: processes of one command, each with its number, on this server. Imports stay
light."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from typing import TYPE_CHECKING

from carma_slurm import STEP_PID, words
from carma_slurm.words.fields import HOST
from carmad.paths import fill
from cli import relay

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import NoReturn

NOT_FOUND = 127
_LONGEST_S = 86_400.0  # of one wait


class Step:
    """`stdout`, `stderr`, `stdin`: files' names, in which %t is the task's number; None: those of
    srun itself."""

    def __init__(
        self,
        command: Sequence[str],
        tasks: int,
        *,
        stdout: str | None = None,
        stderr: str | None = None,
        stdin: str | None = None,
        chdir: str | None = None,
        export: Sequence[str] = (),
        gpus_per_task: int = 0,
        labels: bool = False,
        kills: bool = False,
        wait_s: int = 0,
    ) -> None:
        self.command = command
        self.tasks = tasks
        self.stdout = stdout
        self.stderr = stderr
        self.stdin = stdin
        self.chdir = chdir
        self.export = export
        self.gpus_per_task = gpus_per_task
        self.labels = labels
        self.kills = kills  # all others, once one fails
        self.wait_s = wait_s  # for the others, once one has ended; 0: for ever


def environment(step: Step, task: int, own: dict[str, str]) -> dict[str, str]:
    """Of the task: what Slurm sets in each, for one node."""
    job, tasks = own["SLURM_JOB_ID"], str(step.tasks)
    names = [word for word in step.export if "=" not in word]
    env = dict(own)
    if "NONE" in names:
        env = {name: value for name, value in own.items() if name.startswith(("SLURM_", "CARMA_"))}
        env["PATH"] = own.get("PATH", os.defpath)
    env |= dict(word.split("=", 1) for word in step.export if "=" in word)
    env |= {
        "SLURM_JOBID": job,
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "SLURM_NODEID": "0",
        "SLURM_NNODES": "1",
        "SLURM_NODELIST": HOST,
        "SLURM_JOB_NODELIST": HOST,
        "SLURM_STEP_NODELIST": HOST,
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": tasks,
        "SLURM_TASKS_PER_NODE": tasks,
        "SLURM_GTIDS": ",".join(map(str, range(step.tasks))),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SRUN_COMM_HOST": "127.0.0.1",
        "SLURM_TASK_PID": str(os.getpid()),
    }
    if "SLURM_JOB_GPUS" in own:
        env["SLURM_STEP_GPUS"] = own["SLURM_JOB_GPUS"]
    if step.gpus_per_task:
        gpus = own.get("CUDA_VISIBLE_DEVICES", "").split(",")
        its = gpus[task * step.gpus_per_task :][: step.gpus_per_task]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(its)
    return env


def file_name(pattern: str, task: int, env: dict[str, str]) -> str:
    """%j job, %A array, %a index, %s step, %t task, %n node, %N its name, %x job's, %u user."""
    job = env["SLURM_JOB_ID"]
    means = {
        "j": job,
        "J": f"{job}.0",
        "A": env.get("SLURM_ARRAY_JOB_ID", job),
        "a": env.get("SLURM_ARRAY_TASK_ID", "0"),
        "s": "0",
        "t": str(task),
        "n": "0",
        "N": HOST,
        "x": env.get("SLURM_JOB_NAME", ""),
        "u": env.get("USER", ""),
        "%": "%",
    }
    return fill(pattern, means)


def run_step(step: Step) -> int:
    """The highest exit code of the tasks; 128+N for one that signal N has ended."""
    own = dict(os.environ)
    sys.stdout.flush()
    if step.tasks == 1 and not step.labels:
        _become(step, 0, own)  # so that signals, and what is typed, reach it
    with relay.hold_back():
        return _run_tasks(step, own)


def _run_tasks(step: Step, own: dict[str, str]) -> int:
    from carma_slurm.words import streams

    # What is typed is for none of several.
    copies = step.stdin in (None, "all") and step.tasks > 1 and not os.isatty(0)
    mark = {STEP_PID: str(os.getpid())}
    children: dict[int, int] = {}
    outputs: dict[int, int] = {}
    inputs: list[int] = []
    for task in range(step.tasks):
        reads, writes = os.pipe() if step.labels else (-1, -1)
        its_input, to_it = os.pipe() if copies else (-1, -1)
        child = os.fork()
        if child == 0:
            relay.undo()
            if step.labels:
                os.dup2(writes, 1)
            if copies:
                os.dup2(its_input, 0)
            _become(step, task, own, mark, is_fed=copies)
        children[child] = task
        if step.labels:
            os.close(writes)
            outputs[reads] = task
        if copies:
            os.close(its_input)
            inputs.append(to_it)
    labels = streams.label(outputs)
    if copies:
        streams.copy_input(inputs)
    worst, ends_at, wait_s = 0, math.inf, step.wait_s
    while children:
        worst = max(worst, _await_news(children, step.kills, ends_at))
        if children and time.monotonic() >= ends_at:
            text = f"First task exited {step.wait_s}s ago: killing the others, as --wait says"
            words.say("srun", f"error: {text}")
            _end(children, signal.SIGKILL)
            ends_at, wait_s = math.inf, 0
        elif wait_s and len(children) < step.tasks and ends_at == math.inf:
            ends_at = time.monotonic() + wait_s
    labels.join()
    return worst


def _await_news(children: dict[int, int], kills: bool, ends_at: float) -> int:
    """Wait until tasks have ended, and return the highest exit code of these, or for a signal, and
    pass it on if they have not got it by themselves. `ends_at`: on the monotonic clock."""
    wait_s = min(max(0.0, ends_at - time.monotonic()), _LONGEST_S)
    got = signal.sigtimedwait(relay.signals(), wait_s)
    if got is None:
        return 0
    if got.si_signo != signal.SIGCHLD:
        if not _goes_to_all(got):
            _signal(children, got.si_signo)
        return 0
    worst = 0
    for child, task in list(children.items()):
        pid, status = os.waitpid(child, os.WNOHANG)
        if not pid:
            continue
        del children[child]
        code = os.waitstatus_to_exitcode(status)
        worst = max(worst, code if code >= 0 else 128 - code)
        if code:
            _tell(task, code)
        if code and kills:
            _end(children, signal.SIGTERM)
    return worst


def _goes_to_all(got: signal.struct_siginfo) -> bool:
    """Whether the tasks have it as well: the terminal signals all processes in the foreground, and
    carmad all those of the job. That is done by the supervisor of the job, which was started with
    the name of the folder that is in the environment of each process of the job."""
    if got.si_code > 0:
        return True  # from the kernel
    try:
        with open(f"/proc/{got.si_pid}/cmdline", "rb") as file:  # noqa: PTH123
            words = file.read().split(b"\0")
    except OSError:
        return False  # its sender has ended, or is hidden
    return os.fsencode(os.environ.get("CARMA_ATTEMPT_DIR", "-")) in words


def _end(children: Collection[int], signum: int) -> None:
    """Signal the tasks and all their descendants."""
    from carmad.attempt.proc import send, with_descendants

    all_of_them = with_descendants(dict.fromkeys(children, 0))
    _signal(children, signum)  # first: a shell whose command is gone would go on
    for pid in all_of_them.keys() - children:
        send(pid, all_of_them[pid], signum)


def _signal(children: Iterable[int], signum: int) -> None:
    for child in children:
        with contextlib.suppress(ProcessLookupError):  # it has ended just now
            os.kill(child, signum)


def _tell(task: int, code: int) -> None:
    how = (
        f"Exited with exit code {code}"
        if code > 0
        else signal.strsignal(-code) or f"signal {-code}"
    )
    words.say("srun", f"error: {HOST}: task {task}: {how}")


def _become(
    step: Step,
    task: int,
    own: dict[str, str],
    mark: dict[str, str] | None = None,
    is_fed: bool = False,
) -> NoReturn:
    """`mark`: more variables for the task. `is_fed`: its standard input is there already."""
    env = environment(step, task, own) | (mark or {})
    try:
        if step.chdir:
            os.chdir(step.chdir)
        _redirect(step, task, own, is_fed)
        os.execvpe(step.command[0], list(step.command), env)
    except OSError as error:
        # Of a program that is not on PATH, it is the last place where it was looked for, as bytes.
        name = error.filename if isinstance(error.filename, str) else step.command[0]
        words.say("srun", f"error: {name}: {error.strerror}")
    finally:
        os._exit(NOT_FOUND)


def _redirect(step: Step, task: int, own: dict[str, str], is_fed: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    opened: dict[str, int] = {}
    for fd, pattern in ((1, step.stdout), (2, step.stderr or step.stdout)):
        if pattern in (None, "all"):
            continue
        name = "/dev/null" if pattern == "none" else file_name(pattern or "", task, own)
        if name not in opened:
            opened[name] = os.open(name, flags, 0o666)
        os.dup2(opened[name], fd)
    if step.stdin in (None, "all"):
        if step.tasks == 1 or is_fed:
            return
        name = "/dev/null"
    else:
        name = "/dev/null" if step.stdin == "none" else file_name(step.stdin, task, own)
    os.dup2(os.open(name, os.O_RDONLY), 0)
