"""states.md: states of jobs and GPUs, causes of an attempt's end, modes."""

from __future__ import annotations

from carmad.api.render import CODES
from carmad.core import types
from carmad.core.states import TRANSITIONS
from carmad.core.types import ENDED, HOLDING, Cause, JobState, Mode
from docs.pages.text import cell, comments_of


def page() -> str:
    comments = comments_of(types)
    out = [
        "# States",
        "",
        "## Of a job",
        "",
        "| State | Code | Meaning | Holds GPUs | Can become |",
        "|---|---|---|---|---|",
    ]
    words = {
        JobState.SUCCEEDED: "its exit code was 0",
        JobState.FAILED: "another exit code, a signal, the host's memory, or it never started",
        JobState.CANCELLED: "by its owner or an administrator, or for a dependency",
        JobState.TIMED_OUT: "its time limit was reached",
        JobState.OUT_OF_MEMORY: "out of GPU memory, and no further attempt is made",
    }
    for state in JobState:
        said = comments.get(("JobState", state.name)) or words[state]
        holds = "yes" if state in HOLDING else ""
        after = ", ".join(f"`{one}`" for one in JobState if one in TRANSITIONS[state])
        if state in ENDED:
            after += " (`carma requeue`)"
        out.append(f"| `{state}` | `{CODES[state]}` | {cell(said)} | {holds} | {after} |")
    out += [
        "",
        "Two more codes are kinds of waiting: `H`, the job is held, and `RQ`, it waits for another"
        " attempt (the recovery queue).",
        "",
        "## Cause of an attempt's end",
        "",
        "| Cause | Meaning | The job becomes |",
        "|---|---|---|",
    ]
    ends = {
        Cause.SUCCESS: ("exit code 0", "`succeeded`"),
        Cause.FAILURE: ("", "`failed`"),
        Cause.GPU_OOM: ("the log's end names it", "`queued` again, or `out_of_memory`"),
        Cause.HOST_OOM: ("the kernel's OOM killer, or a log line that names it", "`failed`"),
        Cause.CANCELLED: ("somebody asked for it", "`cancelled`"),
        Cause.TIME_LIMIT: ("`--time` is over", "`timed_out`"),
        Cause.LAUNCH_FAILED: ("", "`failed`"),
        Cause.LOST: ("", "`queued` again, once, or `failed`"),
        Cause.DEPENDENCY: ("", "`cancelled`"),
        Cause.PREEMPTED: ("", "`queued` again, with what it ran for counted"),
        Cause.PROFILED: ("", "`queued` again, from its beginning"),
    }
    for cause in Cause:
        said = comments.get(("Cause", cause.name)) or ends[cause][0]
        out.append(f"| `{cause}` | {cell(said)} | {ends[cause][1]} |")
    out += ["", "## Mode", "", "| Mode | Meaning |", "|---|---|"]
    for mode in Mode:
        out.append(f"| `{mode}` | {cell(comments[('Mode', mode.name)])} |")
    out += [
        "",
        "## Of a GPU",
        "",
        "| State | Meaning |",
        "|---|---|",
        "| `ok` | it takes jobs, if the policy agrees |",
        "| `settling` | a job on it is too fresh to judge it by |",
        "| `stale` | its last reading is older than `monitor.stale_s` |",
        "| `drained` | an administrator, or carmad after an Xid, keeps jobs off it |",
        "| `faulty` | the driver reports a fault |",
    ]
    return "\n".join(out)
