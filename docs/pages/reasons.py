"""reasons.md: every reason, with an example and a remedy. The code has only the sentences."""

from __future__ import annotations

from collections.abc import Callable

from carmad.api.reasons import phrase, short, wordings
from carmad.core.placing.decision import Reason
from docs.pages.text import cell

# An example of each reason, and what helps.
HELP: dict[str, tuple[Reason, str]] = {
    "fault": (
        Reason("fault", detail="the GPU must be reset: nvidia-smi --gpu-reset"),
        "An administrator checks `dmesg`; see the administrators' guide.",
    ),
    "gpus_unread": (
        Reason("gpus_unread", detail="the NVIDIA driver is not loaded"),
        "It starts by itself once the driver works; `carma doctor` and `nvidia-smi` say more.",
    ),
    "drained": (Reason("drained", detail="fan swap"), "`carma drain --undo GPU` (administrators)."),
    "reservation": (
        Reason("reservation", 1_793_000_000, detail="ada"),
        "Wait until then, or use other GPUs; `carma reserve` lists all reservations.",
    ),
    "reservation_ahead": (
        Reason("reservation_ahead", 1_793_000_000, 21_600, "s", "ada"),
        "Give a shorter `--time`, if that is enough, or wait until the reservation is over.",
    ),
    "reservation_notice": (
        Reason("reservation_notice", 1_793_000_000, 86_400, "s", "ada"),
        "Give a time limit that ends before (`--time`); see `limits.reservation_notice_s`.",
    ),
    "stale": (
        Reason("stale", 5, 12, "s"),
        "See `carma doctor`: the driver may hang.",
    ),
    "mig_single": (
        Reason("mig_single", 1, 2, "GPUs"),
        "Ask for one GPU: a process can use only one MIG instance.",
    ),
    "busy": (
        Reason("busy", 0, 1, "jobs", "job 7"),
        "Wait, or drop `--exclusive` if you used it.",
    ),
    "external": (
        Reason("external", 500, 21_504, "MiB"),
        "Wait until these processes end, or end them; `carma status` lists them.",
    ),
    "exclusive": (Reason("exclusive", detail="job 7"), "Wait until that job ends."),
    "profiling": (
        Reason("profiling", 1_793_000_000, detail="job 7"),
        "Wait until that job is profiled; see `profiling.run_s`.",
    ),
    "first_kernel": (
        Reason("first_kernel", 600, 12, "s", "job 7"),
        "Wait until that job computes, or `monitor.first_kernel_timeout_s` has passed.",
    ),
    "settling": (
        Reason("settling", 30, 8, "s", "job 7; the memory of this job is not known"),
        "Wait for the rest of `monitor.window_s`, or declare `--gpu-mem`: jobs of known memory wait"
        " for `monitor.known_window_s` only.",
    ),
    "jobs_per_gpu": (
        Reason("jobs_per_gpu", 8, 8, "jobs"),
        "Wait, or raise `collocation.max_jobs_per_gpu`.",
    ),
    "resuming": (Reason("resuming", detail="job 7"), "Wait: that takes seconds."),
    "resume_there": (
        Reason("resume_there"),
        "Wait until the job's own GPUs are free; or an administrator sets `suspend.moves`.",
    ),
    "resume_kind": (
        Reason("resume_kind", detail="NVIDIA A100-SXM4-40GB"),
        "Wait for a GPU of that kind on the same node.",
    ),
    "suspended": (Reason("suspended"), "`carma resume JOB`."),
    "resume_failed": (
        Reason("resume_failed", 1_800_000_000.0, 1),
        "Wait: the notes of `carma show` say why. Each failure doubles the time to the next try.",
    ),
    "preempted": (
        Reason("preempted", detail="job 9 goes first"),
        "Nothing: it continues when its turn comes. `--no-requeue` prevents preemption.",
    ),
    "making_room": (
        Reason("making_room", 2, 1, "GPUs", "job 7"),
        "Wait until the jobs that were preempted for it have stopped.",
    ),
    "not_preemptible": (
        Reason("not_preemptible"),
        "See `limits.preemption`; jobs with `--no-requeue` are never preempted.",
    ),
    "mps_user": (
        Reason("mps_user", detail="ada"),
        'Wait until that user\'s jobs there end (with `mps_scope = "node"`, on all GPUs), or the'
        " process, if one is named; or see `collocation.mps_multiuser`.",
    ),
    "choice": (
        Reason("choice", detail="h100"),
        "Wait for one of those, or widen `--constraint`, `--on` or `--not-on` with `carma update`.",
    ),
    "avoid": (
        Reason("avoid", detail="ran out of memory there"),
        "Wait for another GPU (adaptive recovery).",
    ),
    "memory": (
        Reason("memory", 83_968, 30_720, "MiB"),
        "Wait, or declare less with `--gpu-mem`.",
    ),
    "min_free": (
        Reason("min_free", 2048, 900, "MiB"),
        "Wait; `preconditions.min_free_mib` is the limit.",
    ),
    "risk": (
        Reason("risk", 0.80, 0.91, "SMACT", "DRAMA 0.44 (limit 0.40)"),
        "Wait until the GPU is less busy. `carma gpus` shows the risk.",
    ),
    "unprofiled": (
        Reason("unprofiled", detail="job 7"),
        "Wait until that job is profiled or has ended.",
    ),
    "unpredicted": (
        Reason("unpredicted", detail="this job"),
        "Use `--expect`, or choose another `predictor`.",
    ),
    "sharing_score": (
        Reason("sharing_score", 2, 3, detail="job 7 is Medium, this one Jumbo"),
        "Wait; `policies.lucid.sharing_capacity` is the limit.",
    ),
    "busy_pair": (
        Reason("busy_pair", 1.2, 1.4, detail="job 7"),
        "Wait; `policies.lucid.utilization_capacity` is the limit.",
    ),
    "gpu_demand": (
        Reason("gpu_demand", 1, 2, "GPUs", "job 7"),
        "Wait: under Lucid only jobs with the same number of GPUs share.",
    ),
    "distributed": (
        Reason("distributed", detail="job 7"),
        "Wait: under Lucid, jobs on several servers do not share.",
    ),
    "unstable": (
        Reason("unstable", 0.05, 0.12, "", "job 7"),
        "Wait: under Lucid only jobs with an even load share.",
    ),
    "outlasts": (
        Reason("outlasts", 7200, 36_000, "GPU-s", "job 7"),
        "Wait: under Lucid a job is not joined by a much longer one.",
    ),
    "kept_for_profiling": (
        Reason("kept_for_profiling"),
        "Nothing: `profiling.gpus` sets how many are reserved.",
    ),
    "no_benefit": (
        Reason("no_benefit", 5400, 7200, "s", "job 7"),
        "Nothing: Castor predicts that waiting is better.",
    ),
    "profiling_gpus": (
        Reason("profiling_gpus", 2, 1, "GPUs"),
        "Wait; `profiling.gpus` sets how many there are.",
    ),
    "sharing_off": (
        Reason("sharing_off", 4, 1, "GPUs"),
        "Wait; `policies.lucid.off_below` is the limit.",
    ),
    "few_idle": (Reason("few_idle", 4, 1, "GPUs"), "Wait until jobs end."),
    "line_held": (
        Reason("line_held", detail="job 7"),
        "Wait: under A-SRPT no job overtakes a waiting one.",
    ),
    "better_gpus": (
        Reason("better_gpus", 1_795_384_800, 2.4, detail="times as slow"),
        "Wait; `policies.asrpt.patience` limits how long.",
    ),
    "slices_apart": (
        Reason("slices_apart", 4, 2, "GPUs"),
        "Wait until jobs end, or ask for fewer tensor slices.",
    ),
    "reserved": (Reason("reserved", 600, 0, "s"), "Wait, or set `policies.asrpt.reserve = false`."),
    "partner": (
        Reason("partner", 1, 1.4, detail="job 7"),
        "Wait until these GPUs have settled.",
    ),
    "no_partner": (Reason("no_partner"), "Wait until jobs end."),
    "planned_start": (
        Reason("planned_start", 1, 5400, "s", "job 7"),
        "Wait: Cuckoo replans at every change.",
    ),
    "deadline": (
        Reason("deadline", 3600, 5400, "s"),
        "A later `--deadline`, fewer GPUs, or asking an administrator.",
    ),
    "packed": (
        Reason("packed", 1, 1.4, detail="job 7"),
        "Nothing to do: this is why Cuckoo packed them.",
    ),
    "close_deadlines": (
        Reason("close_deadlines", 1, 0.8, detail="job 7"),
        "Nothing: `policies.cuckoo.weight` sets how much this counts.",
    ),
    "planned_end": (Reason("planned_end", 7200, 5400, "s"), "Nothing: it meets its deadline."),
    "mapped": (
        Reason("mapped", 0.3, 0.4, "s", "communication-heavy"),
        "Nothing to do: this is why A-SRPT placed it there.",
    ),
    "no_room": (
        Reason("no_room", 2, 1, "GPUs"),
        "Wait until jobs end.",
    ),
    "holds_line": (
        Reason("holds_line", 4, 3, "GPUs"),
        "Wait. Later jobs with a `--time` go first if it is known when this one can start.",
    ),
    "no_promise": (
        Reason("no_promise", 40, unit="s", detail="job 7"),
        "Wait, and give jobs a `--time` or an `--expect`: then it is known when this one can"
        " start.",
    ),
    "kept": (
        Reason("kept", have=4, detail="job 7"),
        "Wait, or give jobs a `--time` or an `--expect`: those that have one can go first.",
    ),
    "held_for": (
        Reason("held_for", 3_600, unit="s", detail="job 7"),
        "Wait; a shorter `--time` or `--expect`, if that is true, lets it start before that job.",
    ),
    "saturated": (
        Reason("saturated", 0.85, 0.95, detail="job 7"),
        "Wait: together, they would only take turns. A shorter `--expect`, if that is true, helps.",
    ),
    "promised": (Reason("promised", 3_600, 4, "s"), "Wait until then."),
    "affine": (
        Reason("affine", 2, 1, detail="job 7 is Tiny, this one Medium"),
        "Nothing to do: this is why Lucid placed it there.",
    ),
    "sharing_benefit": (
        Reason("sharing_benefit", 7200, 5400, "s", "job 7"),
        "Nothing to do: this is why Castor placed it there.",
    ),
    "split_batch": (
        Reason("split_batch", 64, 16, detail="4 parts"),
        "Nothing: `--batch-size` allows it; the gradients stay the same.",
    ),
    "profiled_there": (
        Reason("profiled_there", 200),
        "Nothing: afterwards it has a profile. See `profiling.run_s`.",
    ),
    "idle_first": (Reason("idle_first"), "Nothing to do: this is why it got a GPU to itself."),
    "predicted": (
        Reason("predicted", 0, 5400, "s", "history"),
        "`--expect` is more reliable.",
    ),
    "no_account": (
        Reason(
            "no_account",
            detail="it was submitted by ada with the uid 1001, and now there is no ada",
        ),
        "An administrator repairs the user database: a minute later, the job waits like any other."
        " Or cancels it.",
    ),
    "held": (Reason("held"), "`carma release JOB`."),
    "begin": (Reason("begin", 1_795_384_800, 0, "s"), "Wait: set by `--begin`."),
    "dependency": (Reason("dependency", detail="job 7"), "Wait for that job to end."),
    "array_limit": (
        Reason("array_limit", 2, 2, "tasks"),
        "Wait: set by the `%N` of `--array`.",
    ),
    "quota": (
        Reason("quota", 2, 2, "GPUs", "ada"),
        "Wait until one of your jobs ends, or of your group's; `carma limit` shows the limits.",
    ),
    "gpu_hours": (
        Reason("gpu_hours", 100, 100.4, "GPU-h per week", "ada"),
        "Wait: `carma why` says until when. `carma limit` shows the limits.",
    ),
    "cpus": (
        Reason("cpus", 16, 8, "CPUs", "8 of 32 are free: job 12 has 24"),
        "Wait, or ask for fewer with `--cpus`; `host.cpus` is how many jobs may have.",
    ),
    "host_memory_mib": (
        Reason("host_memory_mib", 65536, 32768, "MiB", "32.0G of 128.0G is free: job 12 has 96.0G"),
        "Wait, or ask for less with `--mem`; `host.memory_mib` is how much jobs may have.",
    ),
    "policy_failed": (
        Reason("policy_failed", detail="it raised KeyError('x')"),
        "An administrator fixes the policy, chooses another, or sets `policy_fallback`.",
    ),
    "policy_fallback": (
        Reason("policy_fallback", detail="lucid"),
        "Nothing: `policy_fallback` decides until the policy answers again.",
    ),
}
OF_THE_JOB = (
    *("no_account", "held", "begin", "dependency", "array_limit", "quota", "gpu_hours"),
    *("cpus", "host_memory_mib", "suspended", "resume_failed"),
    *("preempted", "making_room", "not_preemptible", "policy_failed"),
    *("profiling_gpus", "sharing_off", "no_room", "few_idle", "line_held", "better_gpus"),
    *("holds_line", "no_promise", "kept", "promised"),
    *("slices_apart", "reserved", "partner", "no_partner", "planned_start", "deadline"),
)
POLICYS = (
    *("memory", "min_free", "risk", "unprofiled", "sharing_score", "busy_pair", "gpu_demand"),
    *("distributed", "unpredicted", "unstable", "outlasts", "kept_for_profiling", "no_benefit"),
    *("held_for", "saturated"),
)
GROUNDS = (
    *(
        "idle_first",
        "affine",
        "sharing_benefit",
        "split_batch",
        "profiled_there",
    ),
    "predicted",
    *("packed", "close_deadlines", "planned_end", "mapped", "policy_fallback"),
)


def page() -> str:
    out = [
        "# Reasons",
        "",
        "Why a job waits. The rule that refuses it records the reason, with the numbers that it"
        " used; `carma why JOB` prints it as a sentence, the last column of `carma queue` as a"
        " word, and `--json` as `code`, `need`, `have`, `unit` and `detail`. Codes are stable. A"
        " plugin may use codes of its own.",
        "",
        "Three words in that column are not reasons: `(Priority)`, a job ahead blocks the queue;"
        " `(Resources)`, too few GPUs can take the job; `(Estimating)`, the job's memory need is"
        " not known yet.",
    ]
    kinds: tuple[tuple[str, str, Callable[[str], bool]], ...] = (
        (
            "For a GPU: CARMA's hard rules",
            "No policy can override these.",
            lambda code: code not in OF_THE_JOB + POLICYS + GROUNDS,
        ),
        (
            "For a GPU: preconditions of the policies",
            "The built-in sharing policies (all but `exclusive`) apply the first three, Lucid and"
            " Castor the others as well.",
            lambda code: code in POLICYS,
        ),
        ("For the job", "They do not depend on a GPU.", lambda code: code in OF_THE_JOB),
        (
            "For a placement",
            "Why a job was placed as it was (`grounds` in `--json`).",
            lambda code: code in GROUNDS,
        ),
    )
    for title, said, belongs in kinds:
        out += ["", f"## {title}", "", said, ""]
        out += ["| Code | In a table | In words, for example | What helps |", "|---|---|---|---|"]
        for code in filter(belongs, wordings()):
            example, help = HELP[code]
            where = "" if code in OF_THE_JOB + GROUNDS else "GPU1"
            out.append(
                f"| `{code}` | `({cell(short(example, where))})` | {cell(phrase(example))}"
                f" | {help} |"
            )
    return "\n".join(out)


def reasons() -> set[str]:
    return set(wordings())
