"""`scontrol`: shows jobs and the server, and changes jobs. Imports stay light."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from carma_slurm import CLUSTER, FORGETS_S, PARTITION, VERSION, words
from carma_slurm.words.fields import HOST, names_this_node
from carma_slurm.words.node import read_node
from carmad.readable import clean
from cli import client
from cli.problems import Problem, Usage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cli.reader import Parser

ABOUT = (
    "show job|node|partition|config|hostnames|hostlist [NAME], hold, uhold, release, requeue,"
    " suspend, resume JOB…, update JobId=N NAME=VALUE…, ping, version"
)
ACTIONS = {
    "hold": "hold",
    "uhold": "hold",
    "release": "release",
    "requeue": "requeue",
    "suspend": "suspend",
    "resume": "resume",
}
# Options of a job that can be changed, and the reader of each in `cli.parse`.
CHANGES = {
    "timelimit": ("time_limit_s", "seconds"),
    "jobname": ("name", "not_empty"),
    "name": ("name", "not_empty"),
    "nice": ("nice", ""),
    "dependency": ("after", "dependency"),
    "arraytaskthrottle": ("array", ""),
    "starttime": ("begin_at", "moment"),
    "eligibletime": ("begin_at", "moment"),
    "requeue": ("requeue", ""),
    "features": ("constraint", "constraint"),
    "comment": ("comment", "one_line"),
}
HARMLESS = ("partition", "account", "qos", "wckey", "admincomment")


def declare(parser: Parser) -> None:
    add = parser.add_argument
    add("-o", "--oneliner", action="store_true", help="one line for each record")
    add("-d", "--details", action="store_true", help="also which GPUs a job has")
    add("-a", "--all", action="store_true", help="ignored")
    add("-Q", "--quiet", action="store_true", help="ignored")
    add("-v", "--verbose", action="store_true", help="ignored")
    add("-M", "--clusters", metavar="NAMES", help="ignored: there is one server")
    add("words", nargs="*", metavar="WORD", help="what to do: see above")


def scontrol(args: list[str]) -> int:
    options = words.read("scontrol", ABOUT, declare, args)
    verb, left = " ".join(options.words[:1]).lower(), options.words[1:]
    if verb == "show":
        return _show(left, options.oneliner, options.details)
    if verb in ACTIONS:
        return _act(ACTIONS[verb], left)
    if verb == "update":
        return _update(left)
    if verb == "version":
        print(VERSION)
        return 0
    if verb == "ping":
        client.get("/v1/health")
        print(f"Slurmctld(primary) at {HOST} is UP")
        return 0
    raise Usage(f"invalid keyword: {verb}" if verb else "nothing to do", ABOUT)


def _show(names: Sequence[str], oneliner: bool, details: bool) -> int:
    what, left = " ".join(names[:1]).lower(), list(names[1:])
    what, given, value = what.partition("=")
    left = [value] if given else left
    if what.startswith("hostn"):
        text = left[0] if left else os.environ.get("SLURM_JOB_NODELIST", "")
        print("\n".join(expand(text)))
        return 0
    if what.startswith("hostlist"):
        print(",".join(dict.fromkeys(",".join(left).split(","))))
        return 0
    if what.startswith("conf"):
        print("\n".join(_config()))
        return 0
    if what.startswith("job"):
        records = _jobs(left, details)
    elif what.startswith("node"):
        records = [_node(left)]
    elif what.startswith("part"):
        records = [_partition(left)]
    else:
        raise Usage(f"invalid entity:{what} for keyword:show", ABOUT)
    for record in records:
        lines = [" ".join(f"{name}={clean(value)}" for name, value in line) for line in record]
        print(" ".join(lines) if oneliner else "\n   ".join(lines) + "\n")
    return 0


def expand(text: str) -> list[str]:
    """The names that n[1-3,07],m stands for."""
    return [name for part in words.split(text) for name in _expand_one(part)]


def _expand_one(text: str) -> list[str]:
    head, opened, rest = text.partition("[")
    if not opened:
        return [text] if text else []
    spans, _, tail = rest.partition("]")
    found = []
    for span in spans.split(","):
        low, _, high = span.partition("-")
        if not (low.isdecimal() and (high or low).isdecimal()):
            raise Usage(f"Invalid hostlist: {text}")
        numbers = range(int(low), int(high or low) + 1)
        found += [f"{head}{number:0{len(low)}}" for number in numbers]
    return [name + end for name in found for end in (_expand_one(tail) or [""])]


def _jobs(names: Sequence[str], details: bool) -> list[list[list[tuple[str, Any]]]]:
    from carma_slurm.words.squeue import INVALID

    if names:
        found = client.get("/v1/jobs", select=",".join(names))["jobs"]
        if not found:
            raise Usage(INVALID)
    else:
        found = client.get("/v1/jobs")["jobs"]
        if not found:
            print("No jobs in the system")
    kinds = read_node().kinds if details else None
    return [_job(job, kinds) for job in found]


def _gres(job: Any, kinds: dict[str, str]) -> list[list[tuple[str, Any]]]:
    """Where a job runs, and on which GPUs, by their kinds."""
    by_kind: dict[str, list[str]] = {}
    for gpu in job["gpus"]:
        by_kind.setdefault(kinds.get(gpu["id"], "gpu"), []).append(str(gpu["index"]))
    counts = [(f"gpu:{kind}:{len(its)}", ",".join(its)) for kind, its in by_kind.items()]
    gres = ",".join(f"{count}(IDX:{its})" for count, its in counts)
    where = [("  Nodes", HOST), ("Mem", job.get("host_memory_mib") or 0), ("GRES", gres)]
    return [[("JOB_GRES", ",".join(count for count, _ in counts) or "(null)")], where]


def _job(job: Any, kinds: dict[str, str] | None) -> list[list[tuple[str, Any]]]:
    """`kinds`: of the server's GPUs, if those of the job are to be shown."""
    from carma_slurm.words import fields
    from carma_slurm.words.states import exit_code, reason_of, state_of

    array, index = fields.array_of(job)
    where = fields.nodes(job)
    limit_s, tasks = job.get("time_limit_s"), fields.task_count(job)
    own, group = fields.uid(job["user"]), fields.group(job["user"])
    gpus = [("TresPerNode", fields.gres(job))] if job["gpus_wanted"] else []
    of_array = [("ArrayJobId", array), ("ArrayTaskId", fields.tasks_of(job))] if index else []
    submitted = fields.timestamp(job["submitted_at"], "Unknown")
    begin = job.get("begin_at") or job["submitted_at"]
    return [
        [("JobId", job["id"]), *of_array, ("JobName", job["name"])],
        [
            ("UserId", f"{job['user']}({own})"),
            ("GroupId", f"{group}({fields.gid(job['user'])})"),
            ("MCS_label", "N/A"),
        ],
        [
            ("Priority", fields.priority(job)),
            ("Nice", job.get("nice", 0)),
            ("Account", "(null)"),
            ("QOS", "normal"),
        ],
        [
            ("JobState", state_of(job)),
            ("Reason", reason_of(job)),
            ("Dependency", fields.dependency(job) or "(null)"),
        ],
        [
            ("Requeue", int(job.get("requeue", True))),
            ("Restarts", fields.restarts(job)),
            ("BatchFlag", int(not job.get("interactive", False))),
            ("Reboot", 0),
            ("ExitCode", exit_code(job)),
        ],
        [
            ("RunTime", fields.long_clock(job["elapsed_s"])),
            ("TimeLimit", fields.long_clock(limit_s)),
            ("TimeMin", "N/A"),
        ],
        [("SubmitTime", submitted), ("EligibleTime", fields.timestamp(begin, "Unknown"))],
        [
            ("StartTime", fields.start_time(job, "Unknown")),
            ("EndTime", fields.timestamp(job.get("ended_at"), "Unknown")),
            ("Deadline", fields.timestamp(job.get("deadline_at"), "N/A")),
        ],
        [("Partition", PARTITION)],
        [("NodeList", where)],
        *([[("BatchHost", where)]] if where else ()),
        [
            ("NumNodes", 1),
            ("NumCPUs", fields.cpus(job)),
            ("NumTasks", tasks or "N/A"),
            ("CPUs/Task", fields.cpus(job) // tasks if tasks else "N/A"),
        ],
        [("TRES", fields.tres(job))],
        *(_gres(job, kinds) if where and kinds is not None else ()),
        [("MinCPUsNode", fields.cpus(job)), ("MinMemoryNode", fields.memory(job))],
        [("Features", job.get("constraint") or "(null)")],
        [("OverSubscribe", "YES")],
        [("Command", fields.command(job))],
        [("WorkDir", job.get("cwd", "(null)"))],
        [("StdErr", job.get("stderr") or "/dev/null")],
        [("StdIn", "/dev/null")],
        [("StdOut", job.get("stdout") or "/dev/null")],
        *([[("Comment", job["comment"])]] if job.get("comment") else ()),
        *([gpus] if gpus else ()),
    ]


def _node(names: Sequence[str]) -> list[list[tuple[str, Any]]]:
    if names and not names_this_node(names[0]):
        raise Problem(f"Node {names[0]} not found")
    node = read_node()
    used = node.cpus - node.cpus_free
    busy = sum(bool(gpu["jobs"]) for gpu in node.gpus)
    gpus, in_use = (f",gres/gpu={count}" if node.gpus else "" for count in (len(node.gpus), busy))
    total = f"cpu={node.cpus},mem={node.memory_mib}M,billing={node.cpus}{gpus}"
    return [
        [("NodeName", node.name), ("Arch", os.uname().machine), ("CoresPerSocket", node.cpus)],
        [("CPUAlloc", used), ("CPUTot", node.cpus), ("CPULoad", f"{node.load:.2f}")],
        [("AvailableFeatures", "(null)")],
        [("ActiveFeatures", "(null)")],
        [("Gres", node.gres)],
        [("NodeAddr", node.name), ("NodeHostName", node.name), ("Version", VERSION.split()[1])],
        [("RealMemory", node.memory_mib), ("AllocMem", 0), ("FreeMem", node.free_mib)],
        [("State", node.state.upper()), ("ThreadsPerCore", 1), ("Weight", 1)],
        [("Partitions", PARTITION)],
        [("CfgTRES", total)],
        [("AllocTRES", f"cpu={used}{in_use}" if node.runs else "")],
    ]


def _partition(names: Sequence[str]) -> list[list[tuple[str, Any]]]:
    if names and names[0] != PARTITION:
        raise Problem(f"Partition {names[0]} not found")
    node = read_node()
    gpus = [("TRES", f"cpu={node.cpus},mem={node.memory_mib}M,node=1,gres/gpu={len(node.gpus)}")]
    return [
        [("PartitionName", PARTITION)],
        [("AllowGroups", "ALL"), ("AllowAccounts", "ALL"), ("AllowQos", "ALL")],
        [("AllocNodes", "ALL"), ("Default", "YES"), ("QoS", "N/A")],
        [("DefaultTime", "NONE"), ("DisableRootJobs", "NO"), ("Hidden", "NO")],
        [("MaxNodes", 1), ("MaxTime", "UNLIMITED"), ("MinNodes", 1)],
        [("MaxCPUsPerNode", "UNLIMITED")],
        [("Nodes", node.name)],
        [("OverSubscribe", "YES:1"), ("PreemptMode", "OFF")],
        [("State", "UP"), ("TotalCPUs", node.cpus), ("TotalNodes", 1)],
        [("DefMemPerNode", "UNLIMITED"), ("MaxMemPerNode", "UNLIMITED")],
        gpus,
    ]


def _config() -> list[str]:
    from datetime import datetime

    told = {
        "AccountingStorageType": "carma",
        "ClusterName": CLUSTER,
        "GresTypes": "gpu",
        "KillOnBadExit": "0",
        "MaxArraySize": "10001",
        "MinJobAge": f"{FORGETS_S:.0f} sec",
        "OverTimeLimit": "0 min",
        "SLURM_VERSION": VERSION.split()[1],
        "SelectType": "carma",
        "SlurmctldHost[0]": HOST,
    }
    now = f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S}"
    return [f"Configuration data as of {now}", *(f"{k:<23} = {v}" for k, v in told.items())]


def _act(verb: str, names: Sequence[str]) -> int:
    if not names:
        raise Usage("too few arguments for keyword:" + verb)
    jobs = ",".join(name.lower().removeprefix("jobid=") for name in names)
    body = {"select": jobs, "user": None}
    if verb == "requeue":
        return client.outlive_stop(lambda: _ask(verb, {**body, "all": True}))
    return _ask(verb, body)


def _ask(verb: str, body: dict[str, Any]) -> int:
    answer = client.requeue(body) if verb == "requeue" else client.post(f"/v1/{verb}", body)
    results = answer["results"]
    for result in results:
        if not result["ok"]:
            words.say("scontrol", f"error: job {result['label']} {result['message']}")
    return 0 if results and all(result["ok"] for result in results) else words.FAILED


def _update(pairs: Sequence[str]) -> int:
    from argparse import ArgumentTypeError

    from cli import parse

    given = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise Usage(f"Invalid input: {pair}", "Request aborted")
        given[name.lower()] = value.strip("'\"")
    job = given.pop("jobid", "") or given.pop("job", "")
    if not job:
        raise Usage("only jobs can be updated", "give JobId=N")
    ignored = [name for name in given if name in HARMLESS]
    changes: dict[str, Any] = {}
    for name, value in given.items():
        if name in HARMLESS:
            continue
        if name not in CHANGES:
            raise Usage(f"Update of this parameter is not supported: {name}", _changes())
        option, reader = CHANGES[name]
        try:
            changes[option] = getattr(parse, reader)(value) if reader else int(value)
        except (ArgumentTypeError, ValueError) as error:
            raise Usage(f"{name}: {error}") from None
    if "requeue" in changes:
        changes["requeue"] = bool(changes["requeue"])
    if "array" in changes:
        changes["array"] = {"limit": changes["array"] or None}
    words.ignore("scontrol", ignored)
    if not changes:
        return 0
    return _ask("update", {"select": job, "user": None, **changes})


def _changes() -> str:
    return f"CARMA can change {', '.join(CHANGES)}"
