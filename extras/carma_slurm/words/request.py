"""Requests for jobs, of the options that sbatch, srun and salloc take. What CARMA has an option for
is read by that option; what only Slurm has is here.

A job that asks for no GPU gets none, as with Slurm: it runs on CPUs alone.
"""

from __future__ import annotations

import argparse
import os
import re
from typing import TYPE_CHECKING

from carma_slurm import CLUSTER, PARTITION, VERSION
from carma_slurm.words.fields import HOST, names_this_node
from carmad.options import LEAST_HOST_MIB, MAX_AFTER, MAX_CPUS, MAX_GPUS, MAX_MIB, MAX_SCRIPT_BYTES
from cli import client
from cli.options import JOB, user_of
from cli.parse import UNIT_MIB, dependency, export, gpus_of_kind, not_empty, signal_before, whole
from cli.problems import Usage
from cli.reader import Parser
from cli.script import Directive, Script, read_script
from cli.submission import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# What has no effect on one server, and does no harm if it has none. Each has a value.
HARMLESS = (
    *(("-A", "--account"), ("-p", "--partition"), ("-q", "--qos"), ("--reservation",)),
    *(("--wckey",), ("--open-mode",), ("-M", "--clusters", "--cluster")),
    *(("--hint",), ("-m", "--distribution"), ("--cpu-bind",), ("--mem-bind",), ("--cpu-freq",)),
    *(("--gpu-freq",), ("--gpu-bind",), ("--gres-flags",), ("--acctg-freq",)),
    *(("--ntasks-per-core",), ("--ntasks-per-socket",), ("--threads-per-core",), ("--tmp",)),
    *(("--cores-per-socket",), ("--sockets-per-node",), ("-B", "--extra-node-info")),
    *(("--switches",), ("--profile",), ("--priority",), ("--time-min",)),
    *(("--delay-boot",), ("--mcs-label",), ("--power",), ("--network",), ("-S", "--core-spec")),
    *(("--thread-spec",), ("--kill-on-invalid-dep",), ("--wait-all-nodes",), ("--bb",), ("--bbf",)),
)
# Likewise, with a value after = or none.
HARMLESS_FLAGS = (
    *(("-O", "--overcommit"), ("-s", "--oversubscribe", "--share"), ("--contiguous",)),
    *(("--ignore-pbs",), ("-k", "--no-kill"), ("--spread-job",), ("--use-min-nodes",)),
    *(("--reboot",), ("--get-user-env",), ("-v", "--verbose")),
    *(("-I", "--immediate"), ("--bell",), ("--no-bell",)),
)
# Variables of the environment that stand for an option. Those that stand for one without effect are
# not read: whoever has set one for clusters need not hear of it.
GPU_VARIABLES = {
    "GPUS": "--gpus",
    "GPUS_PER_NODE": "--gpus-per-node",
    "GPUS_PER_TASK": "--gpus-per-task",
    "GRES": "--gres",
}
OF_BOTH = {  # sbatch and salloc
    **GPU_VARIABLES,
    "CONSTRAINT": "--constraint",
    "CPUS_PER_GPU": "--cpus-per-gpu",
    "MEM_PER_CPU": "--mem-per-cpu",
    "MEM_PER_GPU": "--mem-per-gpu",
    "MEM_PER_NODE": "--mem",
    "SIGNAL": "--signal",
    "TIMELIMIT": "--time",
}
OF_SBATCH = {
    "ARRAY_INX": "--array",
    "ERROR": "--error",
    "EXPORT": "--export",
    "GPUS_PER_SOCKET": "--gpus-per-socket",
    "INPUT": "--input",
    "JOB_NAME": "--job-name",
    "OUTPUT": "--output",
}
VARIABLES = {"sbatch": OF_BOTH | OF_SBATCH, "salloc": OF_BOTH, "srun": {}}
FLAG_VARIABLES = {  # whatever their values are
    "sbatch": {
        "EXCLUSIVE": "--exclusive",
        "NO_REQUEUE": "--no-requeue",
        "REQUEUE": "--requeue",
        "WAIT": "--wait",
    },
    "salloc": {"EXCLUSIVE": "--exclusive"},
    "srun": {},
}
UNSAID = ("--wckey", "-v", "--verbose", "--open-mode")  # nobody would miss them
REFUSED = {
    "--uid": "a job runs as the user who submits it",
    "--gid": "a job runs as the user who submits it",
    "--licenses": "CARMA counts no licenses",
    "-L": "CARMA counts no licenses",
    "--export-file": "give --export=NAME=VALUE",
    "--gpus-per-socket": "give --gpus",
    "--ntasks-per-gpu": "give --ntasks and --gpus",
    "--nodefile": "there is one node",
}
ONE_NODE = "Requested node configuration is not available"  # as Slurm says it
SEVERAL_GROUPS = "several groups of options (a heterogeneous job) are not supported"
ONE_GROUP = "ask for all tasks, CPUs and GPUs in one group: there is one node"
FROM_INPUT = "slurm_script"  # the name of a script that was typed or piped in
SINGLETON = {"job": "", "kind": "singleton"}  # until it is known which jobs that are
USUAL_NICE = 100  # what --nice without a number means


class Ignored(argparse.Action):
    """Collects what is ignored, as it was written."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        sign = "=" if (option or "").startswith("--") else " "
        text = f"{option}" if values is None else f"{option}{sign}{values}"
        namespace.ignored = [*(getattr(namespace, "ignored", None) or ()), text]


class Refused(argparse.Action):
    """`const`: what to do instead."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        raise Usage(f"{option} is not supported", str(self.const))


class Memory(argparse.Action):
    """Three options say how much memory the job gets; the last one given wins."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option: str | None = None) -> None:
        for name in ("host_memory_mib", "mem_per_cpu", "mem_per_gpu"):
            setattr(namespace, name, values if name == self.dest else None)


def build_parser(word: str, usage: str, about: str) -> Parser:
    parser = Parser(word, JOB, usage=usage, description=about, conflict_handler="resolve")
    add = parser.add_argument
    count = whole(1, MAX_CPUS)
    about = "number of GPUs (default: none), of a kind if one is given, such as a100:2"
    gpus = ("-G", "--gpus", "--gpus-per-node")
    add(*gpus, type=gpus_of_kind, dest="gpus", metavar="[KIND:]N", help=about)
    about = "file for standard output; %%j id, %%x name, %%u user, %%A array, %%a index"
    add("-o", "--output", dest="stdout", type=_log, metavar="FILE", help=about)
    add("-e", "--error", dest="stderr", type=_log, metavar="FILE", help="file for standard error")
    add("-n", "--ntasks", type=count, metavar="N", help="tasks that srun starts in the job")
    add("-N", "--nodes", type=_nodes, metavar="1", help="there is one node")
    add("--ntasks-per-node", type=count, metavar="N", help="as --ntasks, as there is one node")
    add("--mincpus", type=count, metavar="N", help="at least so many CPUs")
    add("--cpus-per-gpu", type=count, metavar="N", help="CPUs for each GPU")
    add("--gpus-per-task", type=_gpus, metavar="N", help="GPUs for each task")
    size: dict[str, Any] = {"action": Memory, "type": memory, "metavar": "SIZE"}
    add("--mem", dest="host_memory_mib", help="memory of the host", **size)
    add("--mem-per-cpu", dest="mem_per_cpu", help="memory of the host for each CPU", **size)
    add("--mem-per-gpu", dest="mem_per_gpu", help="memory of the host for each GPU", **size)
    about = "jobs to wait for, as for carma submit; singleton: your others of this name"
    add("-d", "--dependency", type=_dependency, dest="after", metavar="LIST", help=about)
    about = "NAME=VALUE, or a NAME to pass on if it is set; NONE or NIL: a minimal environment"
    add("--export", type=_export, action="append", metavar="LIST", help=about)
    add("--exclusive", nargs="?", const=True, default=None, help="do not share the job's GPUs")
    add("--nice", nargs="?", const=USUAL_NICE, type=int, metavar="N", help="yield to others")
    about = "limits (ulimit) that the job gets from this shell: ALL (default) or NONE"
    add("--propagate", nargs="?", metavar="LIST", help=about)
    add("--signal", dest="warn", type=signal_before, metavar="[B:]SIG[@SECONDS]", help="a warning")
    add("-w", "--nodelist", type=_here, dest="ignored_node", help=argparse.SUPPRESS)
    add("-x", "--exclude", type=_elsewhere, dest="ignored_node", help=argparse.SUPPRESS)
    add("-i", "--input", type=_no_input, dest="ignored_node", help=argparse.SUPPRESS)
    silent = argparse.SUPPRESS
    for flags in HARMLESS:
        add(*flags, action=Ignored, dest="ignored", help=silent)
    for flags in HARMLESS_FLAGS:
        add(*flags, nargs="?", action=Ignored, dest="ignored", help=silent)
    for flag, instead in REFUSED.items():
        add(flag, action=Refused, const=instead, help=silent)
    add = parser.add_argument_group("help options").add_argument
    add("-h", "--help", "--usage", action="help", help="show this help")
    add("-V", "--version", action="version", version=VERSION, help="show the version")
    return parser


def _nodes(text: str) -> int:
    """How many at least: 1-4 is 1, 2k is 2,000."""
    match = re.fullmatch(r"(\d{1,9})([km]?)(-\d{1,9}[km]?)?", text.lower())
    if not match:
        raise argparse.ArgumentTypeError(f"Invalid node count: {text}")
    return int(match[1]) * {"": 1, "k": 1000, "m": 1_000_000}[match[2]]


def _log(text: str) -> str:
    return "/dev/null" if text == "none" else not_empty(text)


def _dependency(text: str) -> list[dict[str, str]]:
    parts = text.split(",")
    others = [part for part in parts if part != "singleton"]
    found = dependency(",".join(others)) if others else []
    return found if others == parts else [*found, SINGLETON]


def _export(text: str) -> list[str]:
    """Slurm skips what is not set."""
    words = ["NONE" if word == "NIL" else word for word in export(text)]
    return [word for word in words if "=" in word or word in ("ALL", "NONE", *os.environ)]


def _here(text: str) -> str:
    if not names_this_node(text):
        raise argparse.ArgumentTypeError(f"{ONE_NODE}: the only node is {HOST}")
    return text


def _elsewhere(text: str) -> str:
    if names_this_node(text):
        raise argparse.ArgumentTypeError(f"{ONE_NODE}: the only node is {HOST}")
    return text


def _no_input(text: str) -> str:
    if text not in ("/dev/null", "none"):
        raise argparse.ArgumentTypeError("a job reads nothing: redirect its input in the script")
    return text


def _gpus(text: str) -> int:
    """[KIND:]N"""
    return whole(0, MAX_GPUS)(text.rpartition(":")[2])


def memory(text: str) -> int:
    """4G, 900M, or MiB as a bare number, small or not. 0: all there is."""
    match = re.fullmatch(r"(\d{1,9})([kmgt]?)b?", text.strip().lower())
    units = {"k": 1 / 1024, **UNIT_MIB}
    mib = int(match[1]) * units[match[2] or "m"] if match else -1
    if not 0 <= mib <= MAX_MIB:
        raise argparse.ArgumentTypeError(f"Invalid --mem specification: {text}")
    return int(-(-mib // 1))


def batch_script(word: str) -> Script:
    """The file, or what is typed or piped in if no file is named."""
    import sys

    try:
        if word:
            with open(word, "rb") as file:  # noqa: PTH123
                data = file.read(MAX_SCRIPT_BYTES + 1)
        else:
            data = sys.stdin.buffer.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise Usage(f"Unable to open file {word}: {error.strerror}") from None
    if not data:
        raise Usage("Batch script is empty!")
    script = read_script(word or FROM_INPUT, data)
    for where, _, words in script.directives:
        if words[:1] in (["hetjob"], ["packjob"]):
            raise Usage(f"{where}: {SEVERAL_GROUPS}", ONE_GROUP)
    return script


def job_request(
    parser: Parser, args: list[str], find: Callable[[str], Script | None], name: str
) -> tuple[argparse.Namespace, dict[str, Any], list[str]]:
    """The options, the request, and what is ignored of them. `name`: of a job that has no other.
    Raises Usage."""
    foreign: list[str] = []
    given = parser.parse_args(parser.split(args)[0])
    asked = given.gpus or given.gres or given.gpus_per_task or given.layout
    variables = read_variables(parser.prog, has_gpus=bool(asked))
    options, body = read(args, parser, foreign=foreign, find=find, variables=variables)
    ignored = [*foreign, *(options.ignored or ())]
    if body["name"] in (None, FROM_INPUT):
        body["name"] = name
    if (options.nodes or 1) > 1:
        raise Usage(f"{ONE_NODE}: there is one node, this server")
    if options.propagate == "NONE":
        body["limits"] = {}
    if SINGLETON in body["after"]:
        others = [one for one in body["after"] if one != SINGLETON]
        body["after"] = [*others, *_namesakes(body["name"])]
    tasks = options.ntasks or options.ntasks_per_node
    _count_gpus(options, body, tasks or 1)
    _count_cpus(options, body, tasks or 1)
    _add_memory(options, body)
    if body["warn"] and body["time_limit_s"] is None:
        body["warn"] = None
        ignored.append("--signal (there is no time limit to warn of)")
    if not body["gpus"]:
        for name, flag in (("constraint", "--constraint"), ("exclusive", "--exclusive")):
            if body[name]:
                body[name] = None if name == "constraint" else False
                ignored.append(f"{flag} (it is about GPUs)")
    body["exclusive"] = bool(body["exclusive"])
    body["export"] = environment(options, body, tasks) | body["export"]
    return options, body, [word for word in ignored if not unsaid(word)]


def _namesakes(name: str) -> list[dict[str, str]]:
    """The end of each job of this user and name, and of all tasks of an array."""
    jobs = client.get("/v1/jobs", user=user_of(None, True))["jobs"]
    found = [job["label"].partition("_")[0] for job in jobs if job["name"] == name]
    if len(distinct := dict.fromkeys(found)) > MAX_AFTER:
        text = f"{len(distinct)} of your jobs are called {name}: a job can wait for {MAX_AFTER}"
        raise Usage(text, "give it another --job-name, or leave out singleton")
    return [{"job": job, "kind": "afterany"} for job in distinct]


def read_variables(word: str, has_gpus: bool) -> list[Directive]:
    """The options that variables stand for, but for those of GPUs if the command line has some."""
    found: list[Directive] = []
    for name, flag in VARIABLES[word].items():
        value = os.environ.get(variable := f"{word.upper()}_{name}")
        if value and not (has_gpus and name in GPU_VARIABLES):
            found.append((variable, "#SBATCH", [f"{flag}={value}"]))
    for name, flag in FLAG_VARIABLES[word].items():
        if (variable := f"{word.upper()}_{name}") in os.environ:
            found.append((variable, "#SBATCH", [flag]))
    return found


def unsaid(word: str) -> bool:
    """Whether this option can be ignored without a word to the user."""
    name, _, value = word.replace("=", " ").partition(" ")
    return name in UNSAID or (name in ("-p", "--partition") and value == PARTITION)


def _count_gpus(options: Any, body: dict[str, Any], tasks: int) -> None:
    if options.gpus is None and not options.layout:
        body["gpus"] = (options.gpus_per_task or 0) * tasks
    elif options.gpus_per_task and options.gpus_per_task * tasks != body["gpus"]:
        wanted = options.gpus_per_task * tasks
        raise Usage(f"--gpus-per-task asks for {wanted} GPUs, and --gpus for {body['gpus']}")


def _count_cpus(options: Any, body: dict[str, Any], tasks: int) -> None:
    """One for each task unless more are asked for. A single task with GPUs is not limited to one:
    most programs that use a GPU need more, and CARMA counts none if none is named."""
    if options.cpus_per_gpu and body["gpus"] and body["cpus"] is None:
        body["cpus"] = options.cpus_per_gpu * body["gpus"]
    elif body["cpus"] is not None or tasks > 1:
        body["cpus"] = (body["cpus"] or 1) * tasks
    if options.mincpus:
        body["cpus"] = max(body["cpus"] or 1, options.mincpus)


def _add_memory(options: Any, body: dict[str, Any]) -> None:
    mib = body["host_memory_mib"]
    if mib is None and options.mem_per_cpu:
        mib = options.mem_per_cpu * (body["cpus"] or 1)
    if mib is None and options.mem_per_gpu:
        mib = options.mem_per_gpu * max(1, body["gpus"])
    body["host_memory_mib"] = max(mib, LEAST_HOST_MIB) if mib else None


def environment(options: Any, body: dict[str, Any], tasks: int | None) -> dict[str, str]:
    """What Slurm sets in a job and CARMA by itself does not: it would make some programs wait for
    tasks that only srun starts. SLURM_SUBMIT_HOST tells the daemon to add what it alone knows."""
    env = {
        "SLURM_SUBMIT_DIR": os.getcwd(),  # noqa: PTH109
        "SLURM_SUBMIT_HOST": HOST,
        "SLURM_CLUSTER_NAME": CLUSTER,
        "SLURM_JOB_PARTITION": PARTITION,
        "SLURM_JOB_QOS": "normal",
        "SLURM_CPUS_ON_NODE": str(body["cpus"] or 1),
        "SLURM_JOB_CPUS_PER_NODE": str(body["cpus"] or 1),
        "SLURM_TASKS_PER_NODE": str(tasks or 1),
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_GTIDS": "0",
    }
    if tasks:
        env |= {"SLURM_NTASKS": str(tasks), "SLURM_NPROCS": str(tasks)}
    if options.ntasks_per_node:
        env["SLURM_NTASKS_PER_NODE"] = str(options.ntasks_per_node)
    if options.cpus or body["cpus"]:
        env["SLURM_CPUS_PER_TASK"] = str(options.cpus or body["cpus"] // (tasks or 1))
    if options.gpus_per_task:
        env["SLURM_GPUS_PER_TASK"] = str(options.gpus_per_task)
    if body["host_memory_mib"]:
        env["SLURM_MEM_PER_NODE"] = str(body["host_memory_mib"])
    return env
