"""`scancel`: ends jobs, or sends their processes a signal. Imports stay light."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from carma_slurm import PARTITION, STEP_PID, words
from carma_slurm.words.fields import HOST, has_started, names_this_node, uid
from carma_slurm.words.states import carma_states, parse_states
from carmad.paths import socket_path
from carmad.readable import clean
from cli import client
from cli.options import user_of
from cli.problems import FORBIDDEN, Problem, Refused, Unreachable, Usage

if TYPE_CHECKING:
    from typing import Any

    from carmad.api.job import JobOut
    from cli.reader import Parser

ABOUT = "Cancel jobs, or send their processes a signal."
SOCKET = "CARMA_SOCKET"  # of the daemon, in the environment of each of its jobs
UNKNOWN = "Kill job error on job id {}: Invalid job id specified"
DONE = "Kill job error on job id {}: Job/step already completing or completed"
DENIED = "Kill job error on job id {}: Access/permission denied"


def declare(parser: Parser) -> None:
    add = parser.add_argument
    env = os.environ.get
    add("-s", "--signal", metavar="SIGNAL", help="send this signal instead of ending the job")
    add("-b", "--batch", action="store_true", help="signal the batch shell alone")
    add("-f", "--full", action="store_true", help="signal all processes, also the batch shell")
    name: dict[str, Any] = {"dest": "name", "default": env("SCANCEL_NAME"), "metavar": "NAME"}
    add("-n", "--name", "--jobname", help="jobs of this name", **name)
    add("-u", "--user", default=env("SCANCEL_USER"), metavar="USER", help="this user's jobs")
    add("--me", action="store_true", help="your own jobs")
    about = "jobs in this state: PENDING, RUNNING, SUSPENDED"
    add("-t", "--state", default=env("SCANCEL_STATE"), metavar="STATE", help=about)
    about = f"jobs of this partition: {PARTITION}"
    add("-p", "--partition", default=env("SCANCEL_PARTITION"), metavar="NAME", help=about)
    add("-w", "--nodelist", metavar="NAMES", help=f"jobs that run on these nodes: {HOST}")
    asks = "SCANCEL_INTERACTIVE" in os.environ
    add("-i", "--interactive", action="store_true", default=asks, help="ask before each job")
    add("-M", "--clusters", metavar="NAMES", help="ignored: there is one server")
    add("-H", "--hurry", action="store_true", help="ignored")
    add("--ctld", action="store_true", help="ignored")
    add("-Q", "--quiet", action="store_true", help="no error if a job has ended already")
    add("-v", "--verbose", action="store_true", help="name each job")
    add("jobs", nargs="*", metavar="JOB", help="42, 42_3 or 42_[1-3]")


def scancel(args: list[str]) -> int:
    options = words.read("scancel", ABOUT, declare, args)
    signum = _signal(options.signal)
    jobs = [_job_of(word) for word in words.split(options.jobs)]
    chosen = _has_filter(options)
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


def _has_filter(options: Any) -> bool:
    """Raises Usage for a filter that would not narrow what is cancelled."""
    for variable in ("SCANCEL_ACCOUNT", "SCANCEL_QOS", "SCANCEL_WCKEY"):
        if os.environ.get(variable):
            raise Usage(f"{variable} is set, and jobs here have no such thing", "unset it")
    if options.partition not in (None, PARTITION):
        raise Usage(f"Invalid partition: {options.partition}", f"jobs are in {PARTITION}")
    filters = {
        "--user": options.user,
        "--name": options.name,
        "--state": options.state,
        "--partition": options.partition,
        "--nodelist": options.nodelist,
    }
    for flag, value in filters.items():
        if value == "":
            raise Usage(f"{flag} is empty", "give it a value, or leave it out")
    return bool(options.me or any(filters.values()))


def _select(options: Any, jobs: list[str]) -> list[str]:
    states = parse_states(words.split(options.state)) if options.state else None
    user = user_of(options.user, options.me or not options.user)
    select = ",".join(jobs) or None
    asked = states and carma_states(states)
    live = _live(client.get("/v1/jobs", select=select, user=user, states=asked)["jobs"])
    if options.nodelist:
        here = names_this_node(options.nodelist)
        live = [job for job in live if here and has_started(job)]
    return [str(job["label"]) for job in live if options.name in (None, job["name"])]


def _live(jobs: list[JobOut]) -> list[JobOut]:
    return [job for job in jobs if not job.get("ended_at")]


def _job_of(word: str) -> str:
    """42.batch is job 42. Raises Usage for a single step, which would take the rest with it."""
    job, _, step = word.partition(".")
    if step not in ("", "batch"):
        hint = f"end the step's srun, or cancel the job: scancel {job}"
        raise Usage(f"Kill job error on job step id {word}: single steps are not known here", hint)
    if not job:
        raise Usage(f"Invalid job id {word}")
    return job


def _confirm(jobs: list[JobOut], options: Any, what: str) -> list[JobOut]:
    """Those that the user means, if --interactive asks; --verbose names them. `what`: happens."""
    meant = []
    for job in jobs:
        label = job["label"]
        if options.interactive:
            asked = f"Cancel job_id={label} name={job['name']} partition={PARTITION} [y/n]? "
            print(clean(asked), end="", flush=True)
            answer = sys.stdin.readline() if sys.stdin else ""
            if not answer.lower().startswith("y"):
                continue
        if options.verbose:
            words.say("scancel", f"{what} {label}")
        meant.append(job)
    return meant


def _cancel(job: str, options: Any) -> None:
    found: list[JobOut] = client.get("/v1/jobs", select=job)["jobs"]
    if not found:
        words.say("scancel", f"error: {UNKNOWN.format(job)}")  # and 0, as Slurm's exit code
        return
    live = _live(found)
    if not live:
        _tell_done(job, options)
        return
    meant = _confirm(live, options, "Terminating job")
    # Each by itself only if each was asked about: of others, there may be more by now.
    for select in [one["label"] for one in meant] if options.interactive else [job]:
        results = client.post("/v1/cancel", {"select": select, "user": None})["results"]
        if any(result["ok"] for result in results):
            continue
        if _live(client.get("/v1/jobs", select=select)["jobs"]):
            raise Problem(DENIED.format(select))
        _tell_done(select, options)


def _tell_done(job: str, options: Any) -> None:
    if not options.quiet:
        words.say("scancel", f"error: {DONE.format(job)}")  # Slurm's exit code is 0 then


def _signal(text: str | None) -> int:
    """0: the job is to end, as by SIGKILL."""
    if text is None:
        return 0
    import signal

    names: dict[str, Any] = {
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
    jobs: list[JobOut] = client.get("/v1/jobs", select=label)["jobs"]
    if not jobs:
        raise Problem(UNKNOWN.format(label))
    running = [job for job in _live(jobs) if job["started_at"]]
    if not running and not _live(jobs):
        raise Problem(DONE.format(label))
    if not running:
        raise Problem(f"Kill job error on job id {label}: Job is pending execution")
    meant = _confirm(running, options, f"Signal {signum} to {'batch ' * options.batch}job")
    users = {str(job["user"]) for job in meant}
    ids = {str(job["id"]) for job in meant}
    if ids and not send(ids, users, signum, batch=options.batch, full=options.full):
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
