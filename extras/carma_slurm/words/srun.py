"""`srun`: in a job, a step of it: so many processes of a command, here. Elsewhere, a job of its
own, which runs at this terminal once CARMA has room for it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from typing import TYPE_CHECKING

from carma_slurm import words
from carma_slurm.words.fields import HOST
from carma_slurm.words.request import (
    ONE_GROUP,
    SEVERAL_GROUPS,
    Ignored,
    Refused,
    build_parser,
    job_request,
    unsaid,
)
from carma_slurm.words.step import Step, run_step
from carmad.options import MAX_CPUS, MAX_TIME_S
from cli.parse import whole
from cli.problems import Usage

if TYPE_CHECKING:
    from typing import Any

    from cli.reader import Parser

USAGE = "srun [OPTION…] COMMAND [ARG…]"
ABOUT = (
    "In a job: run the command once for each task, on this server. Elsewhere: wait for room, and"
    " run it here as a job, like carma run."
)
NOT_HERE = {
    "--multi-prog": "start the programs in a script",
    "--array": "use sbatch",
    "-a": "use sbatch",
}
# What a job is given and a step has no use of.
OF_THE_JOB = (
    *(("--cpus-per-gpu",), ("--mem",), ("--mem-per-cpu",), ("--mem-per-gpu",), ("-t", "--time")),
    *(("-N", "--nodes"), ("-w", "--nodelist"), ("-x", "--exclude"), ("-c", "--cpus-per-task")),
    *(("-G", "--gpus"), ("--gres",), ("--gpus-per-node",), ("-C", "--constraint")),
    *(("-J", "--job-name"),),
)
HARMLESS = (
    *(("--bcast",), ("--export-file",), ("-r", "--relative"), ("--prolog",), ("--epilog",)),
    *(("--task-prolog",), ("--task-epilog",), ("-T", "--threads"), ("--het-group",)),
    *(("--slurmd-debug",), ("--jobid",), ("--tres-per-task",)),
)
HARMLESS_FLAGS = (
    *(("-u", "--unbuffered"), ("--pty",), ("--overlap",), ("--exact",), ("--whole",)),
    *(("-E", "--preserve-env"), ("-X", "--disable-status"), ("--interactive",)),
    *(("--quit-on-interrupt",), ("--resv-ports",), ("-Z", "--no-allocate")),
    *(("--send-libs",), ("--x11",)),
)


def srun(args: list[str]) -> int:
    if os.environ.get("CARMA_JOB_ID") and os.environ.get("SLURM_JOB_ID"):
        return _step(args)
    return _job(args)


def _parser(job: bool) -> Parser:
    parser = build_parser("srun", USAGE, ABOUT)
    add = parser.add_argument
    silent = argparse.SUPPRESS
    for flags in HARMLESS if job else (*HARMLESS, *OF_THE_JOB):
        add(*flags, action=Ignored, dest="ignored", help=silent)
    for flags in HARMLESS_FLAGS:
        add(*flags, nargs="?", action=Ignored, dest="ignored", help=silent)
    if not job:  # steps have their CPUs to themselves anyway
        add("--exclusive", nargs="?", dest="alone", help=silent)
    for flag, instead in NOT_HERE.items():
        add(flag, action=Refused, const=instead, help=silent)
    count = whole(1, MAX_CPUS)
    add("-n", "--ntasks", type=count, metavar="N", help="how many processes to start")
    add("-l", "--label", action="store_true", help="put the task's number before each line")
    add("-i", "--input", metavar="FILE", help="what the tasks read: a file, none, all")
    add(
        "-K",
        "--kill-on-bad-exit",
        nargs="?",
        const="1",
        metavar="0|1",
        help="end all tasks once one fails",
    )
    about = "end the remaining tasks this many seconds after the first one ends (0: never)"
    add(
        "-W", "--wait", type=whole(0, int(MAX_TIME_S)), dest="wait_s", metavar="SECONDS", help=about
    )
    add("--mpi", metavar="NAME", help="not for several tasks: mpirun starts those of MPI programs")
    return parser


def _step(args: list[str]) -> int:
    parser = _parser(job=False)
    options, command = _read(parser, args)
    tasks = options.ntasks or options.ntasks_per_node or int(os.environ.get("SLURM_NTASKS") or 1)
    if tasks > 1 and options.mpi not in (None, "none", "openmpi"):
        raise Usage(f"--mpi={options.mpi} is not supported", "start MPI programs with mpirun")
    if not options.quiet:
        words.ignore("srun", [word for word in options.ignored or () if not _means_nothing(word)])
    return run_step(
        Step(
            command,
            tasks,
            stdout=options.stdout,
            stderr=options.stderr,
            stdin=options.input,
            chdir=options.chdir,
            export=[word for part in options.export or () for word in part],
            gpus_per_task=options.gpus_per_task or _number("SLURM_GPUS_PER_TASK"),
            labels=options.label,
            wait_s=options.wait_s or 0,
            kills=(options.kill_on_bad_exit or "0") != "0",
        )
    )


def _read(parser: Parser, args: list[str]) -> tuple[Any, list[str]]:
    """The options, and the command."""
    given, command, _ = parser.split(args)
    options = parser.parse_args(given)
    if not command:
        raise Usage("No command given to execute.")
    if ":" in command:
        raise Usage(f"{SEVERAL_GROUPS}: a lone `:` begins another group", ONE_GROUP)
    return options, command


def _means_nothing(word: str) -> bool:
    """Whether leaving this option out would change nothing."""
    name, _, value = word.replace("=", " ").partition(" ")
    flags = [flag for flags in HARMLESS_FLAGS for flag in flags]
    here = name in ("-w", "--nodelist") and value == HOST
    one = name in ("-N", "--nodes") and value == "1"
    return unsaid(word) or here or one or name in (*flags, "-J", "--job-name")


def _number(name: str) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else 0


def _job(args: list[str]) -> int:
    parser = _parser(job=True)
    _, command = _read(parser, args)
    name = os.path.basename(command[0])  # noqa: PTH119
    program = sys.argv[0] if "/" in sys.argv[0] else shutil.which(sys.argv[0]) or sys.argv[0]
    options, body, ignored = job_request(parser, args, lambda _: None, name)
    if not options.quiet:
        words.ignore("srun", [word for word in ignored if not _means_nothing(word)])
    # The step of the job. What it ignores has been the job's, or is named by now.
    body["argv"] = [os.path.abspath(program), "--quiet", *args]  # noqa: PTH100
    return run_at_terminal(body, options.quiet)


def run_at_terminal(body: dict[str, Any], quiet: bool, granted: Any = None) -> int:
    from cli.interactive import run_job

    if body["array"]:
        raise Usage("--array is not supported", "use sbatch")
    body.pop("script", None)
    terminal = {"stdout": None, "stderr": None, "interactive": True}
    return run_job(body | terminal, quiet=quiet, granted=granted)
