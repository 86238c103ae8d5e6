"""states.md: states of jobs and GPUs, causes of an attempt's end, modes."""

from __future__ import annotations

from carmad.core.jobs import attempt, states
from carmad.core.jobs.attempt import Cause, Mode
from carmad.core.jobs.states import ENDED, HOLDING, TRANSITIONS, JobState
from carmad.states import CODES
from docs.pages.text import cell, comments_of


def page() -> str:
    comments = comments_of(states) | comments_of(attempt)
    out = [
        "# States",
        "",
        "## Jobs",
        "",
        "| State | Code | Meaning | Holds GPUs | Can become |",
        "|---|---|---|---|---|",
    ]
    words = {
        JobState.SUCCEEDED: "its exit code was 0",
        JobState.FAILED: "another exit code, a signal, out of host memory, or it never started",
        JobState.CANCELLED: "by its owner or an administrator, or because of a dependency",
        JobState.TIMED_OUT: "its time limit was reached, or it did not use its GPUs for too long",
        JobState.OUT_OF_MEMORY: "out of GPU memory, without a further attempt",
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
        "Two more codes for waiting jobs: `H`, the job is held, and `RQ`, it waits for another"
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
        Cause.GPU_OOM: ("the end of the log says so", "`queued` again, or `out_of_memory`"),
        Cause.HOST_OOM: ("the kernel's OOM killer, or a log line that says so", "`failed`"),
        Cause.CANCELLED: ("on request", "`cancelled`"),
        Cause.TIME_LIMIT: ("`--time` has passed", "`timed_out`"),
        Cause.IDLE: ("", "`timed_out`"),
        Cause.LAUNCH_FAILED: ("", "`failed`"),
        Cause.NO_ACCOUNT: ("", "`queued` again, and held"),
        Cause.UNSTARTED: ("", "`queued` again, up to twelve times, or `failed`"),
        Cause.LOST: ("", "`queued` again, once, or `failed`"),
        Cause.DEPENDENCY: ("", "`cancelled`"),
        Cause.PREEMPTED: ("", "`queued` again; its run time so far counts"),
        Cause.PROFILED: ("", "`queued` again, from the beginning"),
        Cause.REQUEUED: ("", "`queued` again, from the beginning"),
        Cause.UNRESTORED: ("", "`queued` again, from the beginning, or `failed`"),
    }
    for cause in Cause:
        said = comments.get(("Cause", cause.name)) or ends[cause][0]
        out.append(f"| `{cause}` | {cell(said)} | {ends[cause][1]} |")
    out += ["", "## Mode", "", "| Mode | Meaning |", "|---|---|"]
    for mode in Mode:
        out.append(f"| `{mode}` | {cell(comments[('Mode', mode.name)])} |")
    out += [
        "",
        "## GPUs",
        "",
        "| State | Meaning |",
        "|---|---|",
        "| `ok` | it takes jobs, if the policy agrees |",
        "| `settling` | a job on it started too recently to judge the load |",
        "| `stale` | its last reading is older than `monitor.stale_s` |",
        "| `drained` | an administrator, or carmad after an Xid, keeps new jobs off it |",
        "| `reserved` | only jobs of the users that it is reserved for start there |",
        "| `faulty` | the driver reports a fault |",
    ]
    return "\n".join(out)
