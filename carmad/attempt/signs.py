"""What running attempts have done so far, by what the kernel says of them without waiting for any
of their processes; and what they have printed, which may wait for a file server."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from carmad.attempt import cgroup, exits
from carmad.attempt.proc import children, cpu_ticks, log_sizes, main_process, with_descendants
from carmad.attempt.starting import program
from carmad.children import hear
from carmad.core.jobs.attempt import JobId, Signs

TICKS_PER_S = 100  # USER_HZ
READ_WITHIN_S = 10.0


def read_signs(attempts: Mapping[tuple[JobId, int], tuple[int, str | None]]) -> tuple[Signs, ...]:
    """`attempts`: their supervisors' pids and their cgroups, by job and number."""
    found = []
    tree: dict[int, list[tuple[int, int]]] | None = None  # looked at once, and only if need be
    for (job, number), (supervisor, group) in attempts.items():
        cpu_s = cgroup.cpu_s(group) if group else None
        if cpu_s is None:
            tree = children() if tree is None else tree
            cpu_s = sum(map(cpu_ticks, with_descendants({supervisor: 0}, tree))) / TICKS_PER_S
        found.append(Signs(job, number, cpu_s, log_sizes(main_process(supervisor))))
    return tuple(found)


def read_logs(directory: str, begins: Sequence[int]) -> str:
    """What the attempt in this directory has added to its logs since then, at most their ends, as a
    terminal would show it; "" if it is not to be had now. A process of its own reads it, as the
    job's user: it can be abandoned."""
    words = [*program("carmad.attempt.supervisor", "tell_news"), directory, *map(str, begins)]
    pipe = subprocess.PIPE
    reader = subprocess.Popen(words, env={}, cwd="/", start_new_session=True, stdout=pipe)
    try:
        return exits.as_shown(hear(reader, READ_WITHIN_S))
    except subprocess.TimeoutExpired:
        return ""
