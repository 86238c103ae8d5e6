"""A step of a job: processes of one command, each with its number, on this server. Imports stay
light."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from cli.slurm import words
from cli.slurm.fields import HOST

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

NOT_FOUND = 127
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCONT)
ALSO = (signal.SIGUSR1, signal.SIGUSR2)


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
    if step.gpus_per_task:
        gpus = own.get("CUDA_VISIBLE_DEVICES", "").split(",")
        its = gpus[task * step.gpus_per_task :][: step.gpus_per_task]
        env["CUDA_VISIBLE_DEVICES"] = ",".join(its)
    return env


def file_name(pattern: str, task: int, env: dict[str, str]) -> str:
    """%j job, %A array, %a index, %s step, %t task, %n node, %N its name, %x job's name, %u user;
    with digits before the letter, at least so many digits."""
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
    name, left = "", pattern
    while left:
        before, sign, left = left.partition("%")
        name += before
        digits = len(left) - len(left.lstrip("0123456789"))
        letter = left[digits : digits + 1]
        if not sign:
            break
        if letter not in means:
            name += sign
            continue
        name += means[letter].zfill(int(left[:digits] or 0))
        left = left[digits + 1 :]
    return name


def run_step(step: Step) -> int:
    """The highest exit code of the tasks; 128+N for one that signal N has ended."""
    own = dict(os.environ)
    sys.stdout.flush()
    if step.tasks == 1 and not step.labels:
        _become(step, 0, own)  # so that signals, and what is typed, reach it
    children: dict[int, int] = {}
    pipes: dict[int, int] = {}
    for task in range(step.tasks):
        told, tell = os.pipe() if step.labels else (-1, -1)
        child = os.fork()
        if child == 0:
            if step.labels:
                os.close(told)
                os.dup2(tell, 1)
            _become(step, task, own)
        children[child] = task
        if step.labels:
            os.close(tell)
            pipes[told] = task

    def pass_on(signum: int, _: object) -> None:
        for child in list(children):
            _signal(child, signum)

    for signum in (*PASSED_ON, *ALSO):
        signal.signal(signum, pass_on)
    _label(pipes)
    worst = 0
    while children:
        child, status = os.wait()
        task = children.pop(child)
        code = os.waitstatus_to_exitcode(status)
        worst = max(worst, code if code >= 0 else 128 - code)
        if code:
            _tell(task, code)
        if code and step.kills:
            pass_on(signal.SIGTERM, None)
    return worst


def _signal(child: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended just now
        os.kill(child, signum)


def _tell(task: int, code: int) -> None:
    how = (
        f"Exited with exit code {code}"
        if code > 0
        else signal.strsignal(-code) or f"signal {-code}"
    )
    words.say("srun", f"error: {HOST}: task {task}: {how}")


def _label(pipes: dict[int, int]) -> None:
    """Pass their lines on, each with the number of its task."""
    import selectors

    with selectors.DefaultSelector() as selector:
        left = dict.fromkeys(pipes, b"")
        for fd in pipes:
            selector.register(fd, selectors.EVENT_READ)
        while left:
            for key, _ in selector.select():
                fd = key.fd
                read = os.read(fd, 65536)
                *lines, left[fd] = (left[fd] + read).split(b"\n")
                if not read and left[fd]:
                    lines.append(left[fd])
                for line in lines:
                    os.write(1, b"%d: %s\n" % (pipes[fd], line))
                if not read:
                    selector.unregister(fd)
                    os.close(fd)
                    del left[fd]


def _become(step: Step, task: int, own: dict[str, str]) -> NoReturn:
    env = environment(step, task, own)
    try:
        if step.chdir:
            os.chdir(step.chdir)
        _redirect(step, task, own)
        os.execvpe(step.command[0], list(step.command), env)
    except OSError as error:
        what = f"{error.filename or step.command[0]}: {error.strerror}"
        words.say("srun", f"error: {what}")
    finally:
        os._exit(NOT_FOUND)


def _redirect(step: Step, task: int, own: dict[str, str]) -> None:
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
        if step.tasks == 1:
            return
        name = "/dev/null"  # one of them would take what is for all
    else:
        name = "/dev/null" if step.stdin == "none" else file_name(step.stdin, task, own)
    os.dup2(os.open(name, os.O_RDONLY), 0)
