"""The columns of job tables: `carma queue`, `carma history`, and what `-o` may ask for."""

from __future__ import annotations

from carmad.readable import clean
from cli import table
from cli.format import NOTHING, clock, energy, exit_code, local_time, memory, spread

TYPE_CHECKING = False  # importing typing takes 2 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from carmad.api.job import JobOut


class Column(table.Column):
    """`number`: right-aligned and never cut; `key`: what it is sorted by."""

    __slots__ = ("cell", "key")

    def __init__(
        self,
        header: str,
        cell: Callable[[JobOut], str],
        number: bool = False,
        key: Callable[[JobOut], float] | None = None,
        fit: str = "",
    ) -> None:
        super().__init__(header, right=number, fit=fit if number else "cut")
        self.cell = cell
        self.key = key


def where(job: JobOut) -> str:
    """Its GPUs, or why it has none."""
    if job["gpus"]:
        return ",".join("?" if g["index"] is None else str(g["index"]) for g in job["gpus"])
    if reason := job.get("reason"):
        return clean(reason)
    how = job.get("exit")
    return f"({how['cause']})" if how and how["cause"] != "success" else NOTHING


def _energy(job: JobOut) -> str:
    joules = job.get("energy_j")
    return energy(None if joules is None else joules / 3.6e6)


def vram(job: JobOut) -> str:
    used = job["memory"]
    need = used["declared_mib"] or used["estimate_mib"]
    return f"{memory(used['used_mib'])}/{memory(need)}{spread(used)}"


def params(job: JobOut) -> str:
    """Of a task of a sweep."""
    return clean(" ".join(f"{name}={value}" for name, value in job.get("params", {}).items()))


def label_key(job: JobOut) -> float:
    return job["id"]


COLUMNS = {
    "jobid": Column("JOBID", lambda j: j["label"], True, label_key),
    "name": Column("NAME", lambda j: clean(j["name"])),
    "params": Column("PARAMS", lambda j: params(j) or NOTHING),
    "user": Column("USER", lambda j: clean(j["user"])),
    "st": Column("ST", lambda j: j["code"]),
    "state": Column("STATE", lambda j: j["state"].upper()),
    "time": Column("TIME", lambda j: clock(j["elapsed_s"]), True, lambda j: j["elapsed_s"]),
    "limit": Column(
        "LIMIT",
        lambda j: clock(j.get("time_limit_s")),
        True,
        lambda j: j.get("time_limit_s") or 0,
        fit="drop",
    ),
    "gpus": Column("GPUS", lambda j: str(j["gpus_wanted"]), True, lambda j: j["gpus_wanted"]),
    "cpus": Column(
        "CPUS", lambda j: str(j.get("cpus") or NOTHING), True, lambda j: j.get("cpus") or 0
    ),
    "mem": Column(
        "MEM",
        lambda j: memory(j.get("host_memory_mib")),
        True,
        lambda j: j.get("host_memory_mib") or 0,
    ),
    "vram": Column("VRAM(USED/EST)", vram, True, lambda j: j["memory"]["used_mib"] or 0),
    "peak": Column(
        "PEAK",
        lambda j: memory(j["memory"]["peak_mib"]),
        True,
        lambda j: j["memory"]["peak_mib"] or 0,
    ),
    "where": Column("GPU(REASON)", where),
    "mode": Column("MODE", lambda j: j.get("mode") or NOTHING),
    "submitted": Column("SUBMITTED", lambda j: local_time(j["submitted_at"])),
    "started": Column("STARTED", lambda j: local_time(j["started_at"])),
    "ended": Column("ENDED", lambda j: local_time(j.get("ended_at"))),
    "deadline": Column("DEADLINE", lambda j: local_time(j.get("deadline_at"))),
    "wait": Column("WAITED", lambda j: clock(j.get("wait_s")), True, lambda j: j.get("wait_s", 0)),
    "place": Column(
        "PLACE", lambda j: str(j.get("position") or NOTHING), True, lambda j: j.get("position") or 0
    ),
    "attempt": Column(
        "TRY", lambda j: str(j.get("attempt", NOTHING)), True, lambda j: j.get("attempt", 0)
    ),
    "nice": Column("NICE", lambda j: str(j.get("nice", NOTHING)), True, lambda j: j.get("nice", 0)),
    "exit": Column("EXIT", lambda j: exit_code(j.get("exit"))),
    "energy": Column("ENERGY", _energy, True, lambda j: j.get("energy_j") or 0),
    "command": Column("COMMAND", lambda j: clean(" ".join(j.get("argv", [NOTHING])))),
}
QUEUE = ("jobid", "name", "user", "st", "time", "limit", "gpus", "vram", "where")
QUEUE_LONG = (*QUEUE, "mode", "peak", "submitted", "place", "attempt", "nice", "command")
HISTORY = (
    "jobid",
    "name",
    "user",
    "state",
    "exit",
    "started",
    "time",
    "gpus",
    "peak",
    "energy",
    "wait",
)


def with_params(fields: Sequence[str], jobs: Iterable[JobOut]) -> Sequence[str]:
    """The columns, and behind the name the parameters if there is a sweep among the jobs."""
    if not any(job.get("params") for job in jobs):
        return fields
    at = fields.index("name") + 1
    return (*fields[:at], "params", *fields[at:])


def sort(jobs: list[JobOut], order: str) -> list[JobOut]:
    """`order`: a column's name; with - in front, in reverse."""
    column = COLUMNS[order.removeprefix("-")]
    reverse = order.startswith("-")
    if column.key is not None:
        return sorted(jobs, key=column.key, reverse=reverse)
    return sorted(jobs, key=column.cell, reverse=reverse)
