"""`scancel`: ends jobs, or sends their processes a signal. Imports stay light."""

from __future__ import annotations

import os
import sys

from carmad.paths import socket_path
from carmad.readable import clean
from cli import client
from cli.options import user_of
from cli.problems import FORBIDDEN, Problem, Refused, Unreachable, Usage
from cli.slurm import PARTITION, STEP_PID, words
from cli.slurm.fields import HOST, has_started, uid
from cli.slurm.states import carma_states, parse_states

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from typing import Any

    from carmad.api.job import JobOut
    from cli.plain import Options

ABOUT = "Cancel jobs, or send their processes a signal."
SOCKET = "CARMA_SOCKET"  # of the daemon, in the environment of each of its jobs
UNKNOWN = "Kill job error on job id {}: Invalid job id specified"
DONE = "Kill job error on job id {}: Job/step already completing or completed"
DENIED = "Kill job error on job id {}: Access/permission denied"


def declare(parser: Options) -> None:
    add = parser.add_argument
    add("-s", "--signal", metavar="SIGNAL", help="send this signal instead of ending the job")
    add("-b", "--batch", action="store_true", help="signal the batch shell alone")
    add("-f", "--full", action="store_true", help="signal all processes, also the batch shell")
    add("-n", "--name", "--jobname", dest="name", metavar="NAME", help="jobs of this name")
    add("-u", "--user", metavar="USER", help="this user's jobs")
    add("--me", action="store_true", help="your own jobs")
    add("-t", "--state", metavar="STATE", help="jobs in this state: PENDING, RUNNING, SUSPENDED")
    add("-p", "--partition", metavar="NAME", help=f"jobs of this partition: {PARTITION}")
    add("-w", "--nodelist", metavar="NAMES", help=f"jobs that run on these nodes: {HOST}")
    add("-i", "--interactive", action="store_true", help="ask before each job")
    add("-M", "--clusters", metavar="NAMES", help="ignored: there is one server")
    add("-H", "--hurry", action="store_true", help="ignored")
    add("--ctld", action="store_true", help="ignored")
    add("-Q", "--quiet", action="store_true", help="no error if a job has ended already")
    add("-v", "--verbose", action="store_true", help="name each job")
    add("jobs", nargs="*", metavar="JOB", help="42, 42_3 or 42_[1-3]")


def scancel(args: list[str]) -> int:
    options = words.read("scancel", ABOUT, declare, args)
    signum = _signal(options.signal)
    jobs = [_job_of(word, signum) for word in words.split(options.jobs)]
    if options.partition not in (None, PARTITION):
        raise Usage(f"Invalid partition: {options.partition}", f"jobs are in {PARTITION}")
    filters = (options.user, options.name, options.state, options.partition, options.nodelist)
    chosen = any(filters) or options.me
    if not (jobs or chosen):
        raise Usage("No job identification provided")
    if chosen:
        jobs = _select(options, jobs)
    failed = False
    for job in jobs:
        try:
            if signum:
                _send(job, signum, options)
            else:
                _cancel(job, options)
        except Unreachable:  # neither for the others
            raise
        except Problem as error:
            denied = isinstance(error, Refused) and error.code in FORBIDDEN
            words.say("scancel", f"error: {DENIED.format(job) if denied else error.message}")
            failed = True
    return words.FAILED if failed else 0


def _select(options: Any, jobs: list[str]) -> list[str]:
    states = parse_states(words.split(options.state)) if options.state else None
    user = user_of(options.user, options.me or not options.user)
    select = ",".join(jobs) or None
    asked = states and carma_states(states)
    found = client.get("/v1/jobs", select=select, user=user, states=asked)["jobs"]
    live = [job for job in found if not job.get("ended_at")]
    if options.nodelist:
        nodes = [name.partition(".")[0] for name in words.split(options.nodelist)]
        live = [job for job in live if has_started(job) and HOST in nodes]
    return [str(job["label"]) for job in live if options.name in (None, job["name"])]


def _job_of(word: str, signum: int) -> str:
    """The job of a step, such as 42.batch. Raises Usage if only one of its steps is to end."""
    job, _, step = word.partition(".")
    if step.isdecimal() and not signum:
        hint = f"end the step's srun, or cancel the job: scancel {job}"
        raise Usage(
            f"Kill job error on job step id {word}: a single step cannot be cancelled", hint
        )
    return job


def _is_meant(job: JobOut, options: Any, doing: str = "Terminating job") -> bool:
    """Whether the user says so, if --interactive asks. `doing`: what, for --verbose."""
    label = job["label"]
    if options.interactive:
        asked = f"Cancel job_id={label} name={job['name']} partition={PARTITION} [y/n]? "
        print(clean(asked), end="", flush=True)
        if not sys.stdin.readline().lower().startswith("y"):
            return False
    if options.verbose:
        words.say("scancel", f"{doing} {label}")
    return True


def _cancel(job: str, options: Any) -> None:
    if not client.get("/v1/jobs", select=job)["jobs"]:
        words.say("scancel", f"error: {UNKNOWN.format(job)}")  # and 0, as Slurm's exit code
        return
    found = _job(job)
    ended = bool(found.get("ended_at"))
    if not ended and not _is_meant(found, options):
        return
    results = client.post("/v1/cancel", {"select": job, "user": None})["results"]
    if any(result["ok"] for result in results):
        return
    if ended or _job(job).get("ended_at"):
        if not options.quiet:
            words.say("scancel", f"error: {DONE.format(job)}")  # Slurm's exit code is 0 then
        return
    raise Problem(DENIED.format(job))


def _job(job: str) -> JobOut:
    found: list[JobOut] = client.get("/v1/jobs", select=job)["jobs"]
    if not found:
        raise Problem(UNKNOWN.format(job))
    return found[-1]


def _signal(text: str | None) -> int:
    """0: the job is to end, as by SIGKILL."""
    if text is None:
        return 0
    import signal

    names = {
        name.removeprefix("SIG"): number for name, number in signal.Signals.__members__.items()
    }
    name = text.upper().removeprefix("SIG")
    if name.isdecimal() and int(name) in names.values():
        number = int(name)
    elif name in names:
        number = int(names[name])
    else:
        raise Usage(f"Unknown job signal: {text}")
    return 0 if number == signal.SIGKILL else number


def _send(label: str, signum: int, options: Any) -> None:
    """The job's processes are known by their environment, which its owner and root may read."""
    jobs = client.get("/v1/jobs", select=label)["jobs"]
    if not jobs:
        raise Problem(UNKNOWN.format(label))
    running = {str(job["id"]) for job in jobs if job["started_at"] and not job.get("ended_at")}
    if not running and all(job.get("ended_at") for job in jobs):
        raise Problem(DONE.format(label))
    if not running:
        raise Problem(f"Kill job error on job id {label}: Job is pending execution")
    if not _is_meant(jobs[-1], options, f"Signal {signum} to job"):
        return
    users = {str(job["user"]) for job in jobs}
    if not send(running, users, signum, batch=options.batch, full=options.full):
        raise Problem(DENIED.format(label))


def send(
    jobs: set[str], users: set[str], signum: int, batch: bool = False, full: bool = False
) -> int:
    """Signal processes of these users' jobs, and return how many got it: the batch shell alone
    (`batch`), all (`full`), or all but the batch shell if it has started others. An `srun` that
    waits for several tasks gets none: it would pass the signal on to tasks that have it already."""
    from carmad.attempt.proc import process_stat, uids
    from carmad.attempt.proc import send as send_to

    owners = {uid(user) for user in users}
    parents, starts = {}, {}
    for name in os.listdir("/proc"):  # noqa: PTH208
        if name.isdecimal() and owners & uids(int(name)) and (stat := process_stat(int(name))):
            parents[int(name)], starts[int(name)] = stat
    socket = os.path.realpath(socket_path())
    ids = _read("CARMA_JOB_ID", starts)
    ours = {pid: starts[pid] for pid, id in ids.items() if id in jobs}
    # Jobs of another daemon may have the same numbers.
    ours = {
        pid: starts[pid]
        for pid, its in _read(SOCKET, ours).items()
        if its and os.path.realpath(its) == socket
    }
    shells = {pid for pid in ours if parents[pid] not in ours}
    others = ours.keys() - shells
    chosen = set(ours) if full or not others else shells if batch else others
    steps = set(_read(STEP_PID, ours).values())
    return sum(send_to(pid, ours[pid], signum) for pid in chosen if str(pid) not in steps)


def _read(variable: str, processes: dict[int, int]) -> dict[int, str]:
    """Its value in the environment of each of these processes (pid and start time); "" if it has
    none, or hides it. Raises Problem if too many hide it."""
    from carmad.attempt.marks import Marks

    marks = Marks(os.fsencode(variable))
    marks.ask(processes)
    if any(marks.value(pid, at) is None for pid, at in processes.items()):
        hint = "cancel the job instead, without -s"
        raise Problem("too many of the user's processes hide which job they belong to", hint)
    return {pid: os.fsdecode(marks.value(pid, at) or b"") for pid, at in processes.items()}
