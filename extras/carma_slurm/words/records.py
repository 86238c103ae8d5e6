"""Jobs as `squeue --json` and `sacct --json` have them: those fields that CARMA knows, under the
names that Slurm 22.05 gives them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from carma_slurm import CLUSTER, PARTITION, VERSION
from carma_slurm.words.fields import (
    array_of,
    command,
    comment,
    cpus,
    dependency,
    features,
    nodes,
    priority,
    restarts,
    task_count,
    tres,
    uid,
)
from carma_slurm.words.states import exit_code, reason_of, state_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from carmad.api.job import JobOut


def print_jobs(jobs: Iterable[JobOut]) -> None:
    _print([_job(job) for job in jobs])


def print_accounts(jobs: Iterable[JobOut]) -> None:
    _print([_account(job) for job in jobs])


def _print(jobs: list[dict[str, Any]]) -> None:
    major, micro, minor = VERSION.split()[1].split(".")
    version = {"major": major, "micro": int(micro), "minor": int(minor)}
    slurm = {"version": version, "release": VERSION.split()[1]}
    meta = {"plugin": {"type": "carma", "name": "CARMA"}, "Slurm": slurm}
    print(json.dumps({"meta": meta, "errors": [], "jobs": jobs}))


def seconds(stamp: str | None) -> int:
    """Since 1970; 0 for what has not happened."""
    from datetime import datetime

    return int(datetime.fromisoformat(stamp).timestamp()) if stamp else 0


def _job(job: JobOut) -> dict[str, Any]:
    array, index = array_of(job)
    code, _, signum = exit_code(job).partition(":")
    limit_s = job.get("time_limit_s")
    return {
        "job_id": job["id"],
        "array_job_id": int(array) if index else 0,
        "array_task_id": int(index) if index.isdecimal() else None,
        "array_task_string": index.strip("[]") if index and not index.isdecimal() else "",
        "name": job["name"],
        "user_name": job["user"],
        "user_id": uid(job["user"]),
        "account": "",
        "partition": PARTITION,
        "qos": "normal",
        "cluster": CLUSTER,
        "job_state": state_of(job),
        "state_reason": reason_of(job),
        "exit_code": int(code) << 8 | int(signum),
        "restart_cnt": restarts(job),
        "priority": priority(job),
        "nice": job.get("nice", 0),
        "node_count": 1,
        "tasks": task_count(job),
        "cpus": cpus(job),
        "memory_per_node": job.get("host_memory_mib"),
        "nodes": nodes(job),
        "job_resources": _resources(job) if nodes(job) else {},
        "tres_req_str": tres(job),
        "tres_alloc_str": tres(job) if nodes(job) else "",
        "dependency": dependency(job),
        "features": features(job),
        "time_limit": None if limit_s is None else int(limit_s // 60),
        "submit_time": seconds(job["submitted_at"]),
        "eligible_time": seconds(job.get("begin_at") or job["submitted_at"]),
        "start_time": seconds(job["started_at"]),
        "end_time": seconds(job.get("ended_at")),
        "command": command(job),
        "comment": comment(job),
        "current_working_directory": job.get("cwd", ""),
        "standard_output": job.get("stdout") or "",
        "standard_error": job.get("stderr") or "",
    }


def _resources(job: JobOut) -> dict[str, Any]:
    node = {"cpus": cpus(job), "memory": job.get("host_memory_mib") or 0}
    return {
        "nodes": nodes(job),
        "allocated_cpus": cpus(job),
        "allocated_hosts": 1,
        "allocated_nodes": {"0": node},
    }


def _account(job: JobOut) -> dict[str, Any]:
    array, index = array_of(job)
    code, _, signum = exit_code(job).partition(":")
    limit_s = job.get("time_limit_s")
    status = "SIGNALED" if int(signum) else "SUCCESS" if int(code) == 0 else "ERROR"
    ended = {"status": status, "return_code": int(code), "signal": {"signal_id": int(signum)}}
    return {
        "job_id": job["id"],
        "array": {
            "job_id": int(array) if index else 0,
            "task_id": int(index) if index.isdecimal() else 0,
        },
        "name": job["name"],
        "user": job["user"],
        "account": "",
        "partition": PARTITION,
        "qos": "normal",
        "cluster": CLUSTER,
        "state": {"current": state_of(job), "reason": reason_of(job)},
        "exit_code": ended,
        "derived_exit_code": ended,
        "nodes": nodes(job) or "None assigned",
        "allocation_nodes": 1,
        "required": {"CPUs": cpus(job), "memory": job.get("host_memory_mib")},
        "restart_cnt": restarts(job),
        "time": {
            "elapsed": int(job["elapsed_s"]),
            "submission": seconds(job["submitted_at"]),
            "eligible": seconds(job.get("begin_at") or job["submitted_at"]),
            "start": seconds(job["started_at"]),
            "end": seconds(job.get("ended_at")),
            "limit": None if limit_s is None else int(limit_s // 60),
        },
        "working_directory": job.get("cwd", ""),
        "steps": [],
    }
